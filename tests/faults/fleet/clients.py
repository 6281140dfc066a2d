"""Clients that ask a fleet without pause, check every answer against its snapshot, and note when each was seen."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import tritonclient.grpc as triton_grpc

from tests.faults.fleet.replicas import Fleet
from tests.integration.serving.planted import NAME, OUTPUTS, Planted, Row
from tests.support.asking_threads import AskingThreads

_ROWS = 4
_REQUESTS = 32
_TIMEOUT_S = 30.0
_TOLERANCE = 2e-6
PATH = f"/v2/models/{NAME}/infer"


@dataclass(frozen=True)
class Request:
    """One request in both forms."""

    rows: Sequence[Row]
    body: bytes
    tensors: dict[str, np.ndarray]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Request:
        """Encodes rows."""
        lists = [row["items"] or [] for row in rows]
        width = max(1, *map(len, lists))
        padded = [[*entry, *[0] * (width - len(entry))] for entry in lists]
        tensors = {
            "user": np.array([[row["user"]] for row in rows], np.int64),
            "items": np.array(padded, np.int64),
            "items.lengths": np.array([[len(entry)] for entry in lists], np.int64),
        }
        inputs = [
            {"name": name, "datatype": "INT64", "shape": list(values.shape), "data": values.ravel().tolist()}
            for name, values in tensors.items()
        ]
        return cls(rows, json.dumps({"inputs": inputs}).encode(), tensors)


@dataclass
class Answer:
    """Holds what came back: the id of the snapshot, and the outputs by name."""

    snapshot: str
    outputs: dict[str, np.ndarray]


class HttpCaller:
    """Asks over one connection at a time, of HTTP."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)

    def ask(self, request: Request, **headers: str) -> Answer:
        """Returns the answer. Raises RuntimeError with a refusal, OSError or HTTPException for a broken connection."""
        self._connection.request("POST", PATH, request.body, {"Content-Type": "application/json", **headers})
        answer = self._connection.getresponse()
        content = json.loads(answer.read() or b"{}")
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content}")
        outputs = {
            each["name"]: np.array(each["data"], np.float32).reshape(each["shape"]) for each in content["outputs"]
        }
        return Answer(content["parameters"]["snapshot"], outputs)

    def close(self) -> None:
        """Ends the connection; the next request opens another one."""
        self._connection.close()


class GrpcCaller:
    """Asks over one connection of gRPC."""

    def __init__(self, port: int) -> None:
        self._client = triton_grpc.InferenceServerClient(f"127.0.0.1:{port}")

    def ask(self, request: Request) -> Answer:
        """Returns the answer. Raises InferenceServerException."""
        inputs = []
        for name, values in request.tensors.items():
            inputs.append(triton_grpc.InferInput(name, list(values.shape), "INT64"))
            inputs[-1].set_data_from_numpy(values)
        result = self._client.infer(NAME, inputs, client_timeout=_TIMEOUT_S)
        snapshot = result.get_response().parameters["snapshot"].string_param
        return Answer(snapshot, {each.name: result.as_numpy(each.name) for each in OUTPUTS})

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


@dataclass
class Seen:
    """Collects what clients found.

    failed: requests without an answer. wrong: answers that are not their snapshot's own.
    """

    answers: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    snapshots: Counter[str] = field(default_factory=Counter)
    #: By replica, when the first and the last answer from a snapshot came, in seconds of the monotonic clock.
    first: dict[str, dict[str, float]] = field(default_factory=dict)
    last: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Answers older than one that the same caller had already.
    older: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """Everything that must not be."""
        return [*self.wrong, *self.failed, *self.older]


class Clients(AskingThreads):
    """Threads that ask until the end of the `with` block. `seen` may be read meanwhile, and replaced to count anew."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        self.seen = Seen()
        base = next(iter(fleet.snapshots.values()))
        rows = fleet.world.rows_of(base, _ROWS * _REQUESTS)
        self._requests = [Request.of(rows[at : at + _ROWS]) for at in range(0, len(rows), _ROWS)]

    def behind_the_balancer(self, *, http: int = 2, grpc: int = 1, pause_s: float = 0.004) -> Self:
        """Adds clients of the balancer, whose every request has to be answered."""
        for _ in range(http):
            self._add(partial(HttpCaller, self.fleet.balancer.http_port), pause_s)
        for _ in range(grpc):
            self._add(partial(GrpcCaller, self.fleet.balancer.grpc_port), pause_s)
        return self

    def watching(self, *, pause_s: float = 0.0) -> Self:
        """Adds one client for each replica, past the balancer; while a replica is away, its client waits."""
        for name in self.fleet.names:
            self._add(partial(HttpCaller, self.fleet.port(name)), pause_s, name)
        return self

    def alternating(self, *, through_balancer: bool, pause_s: float = 0.0) -> Self:
        """Adds one caller with one request at a time, to one replica after the other, and counts older answers."""
        ports = [self.fleet.balancer.http_port] if through_balancer else [*map(self.fleet.port, self.fleet.names)]
        self._threads.append(threading.Thread(target=self._alternate, args=(ports, pause_s, False)))
        return self

    def monotonic(self, *, pause_s: float = 0.004) -> Self:
        """Adds a caller of the balancer that asks for no answer older than those it has."""
        ports = [self.fleet.balancer.http_port]
        self._threads.append(threading.Thread(target=self._alternate, args=(ports, pause_s, True)))
        return self

    def take(self) -> Seen:
        """Returns what was seen since the last call."""
        with self._lock:
            seen, self.seen = self.seen, Seen()
        return seen

    def _add(self, make: Callable[[], Any], pause_s: float, replica: str = "") -> None:
        self._threads.append(threading.Thread(target=self._run, args=(make, pause_s, replica)))

    def _run(self, make: Callable[[], Any], pause_s: float, replica: str) -> None:
        turn = len(replica)
        caller = make()
        while not self._stop.is_set():
            turn += 1
            request = self._requests[turn % len(self._requests)]
            try:
                answer = caller.ask(request)
            except Exception as error:
                caller.close()
                caller = make()
                if replica:
                    time.sleep(0.05)
                else:
                    self._fail(error)
                continue
            self._check(request, answer, replica)
            if pause_s:
                time.sleep(pause_s)
        caller.close()

    def _alternate(self, ports: list[int], pause_s: float, asks: bool) -> None:
        callers = [HttpCaller(port) for port in ports]
        newest, turn = 0, 0
        headers: dict[str, str] = {}
        while not self._stop.is_set():
            turn += 1
            request = self._requests[turn % len(self._requests)]
            caller = callers[turn % len(callers)]
            try:
                answer = caller.ask(request, **headers)
            except Exception as error:
                caller.close()
                self._fail(error)
                continue
            self._check(request, answer, "")
            place = self.fleet.places.get(answer.snapshot, 0)
            if place < newest:
                with self._lock:
                    self.seen.older.append(f"{answer.snapshot} after {newest - place} newer")
            newest = max(newest, place)
            headers = {"Emberline-Min-Snapshot": answer.snapshot} if asks else {}
            if pause_s:
                time.sleep(pause_s)
        for caller in callers:
            caller.close()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self.seen.failed.append(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {str(error)[:300]}")

    def _check(self, request: Request, answer: Answer, replica: str) -> None:
        now = time.monotonic()
        with self._lock:
            seen = self.seen
            seen.answers += 1
            seen.snapshots[answer.snapshot] += 1
            if replica:
                seen.first.setdefault(replica, {}).setdefault(answer.snapshot, now)
                seen.last.setdefault(replica, {})[answer.snapshot] = now
        snapshot = self.fleet.snapshots.get(answer.snapshot)
        wrong = f"snapshot {answer.snapshot} was never published" if snapshot is None else ""
        if snapshot is not None and not _is_of(answer, snapshot, request.rows):
            others = [each.name for each in list(self.fleet.snapshots.values()) if _is_of(answer, each, request.rows)]
            wrong = f"an answer of {snapshot.name} is that of {others or 'no snapshot'}; rows {request.rows}"
        if wrong:
            with self._lock:
                seen.wrong.append(wrong)


def _is_of(answer: Answer, snapshot: Planted, rows: Sequence[Row]) -> bool:
    expected = snapshot.answer(rows)
    return all(np.allclose(answer.outputs[name], expected[name], rtol=0, atol=_TOLERANCE) for name in expected)
