"""Clients that ask without pause and check every answer against the snapshot that it names."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from serving.security.own_token import read_own_token
from tests.e2e.planted_world import TOLERANCE, Answers, Row, World
from tests.support.asking_threads import AskingThreads

TIMEOUT_S = 30.0
WAIT_S = 60.0


class Asker:
    """One keep-alive connection, closed at the end of `with`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def post(self, path: str, content: Any, headers: Mapping[str, str] = {}) -> tuple[int, Any]:
        """Returns the status and the JSON of the answer."""
        body = json.dumps(content).encode()
        self._connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else {}

    def get(self, path: str) -> tuple[int, Any]:
        """Returns the status and the JSON of the answer."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else {}

    def infer(self, model: str, rows: Sequence[Row], **parameters: Any) -> tuple[int, Any]:
        """Returns the KServe v2 request of these rows."""
        return self.post(f"/v2/models/{model}/infer", infer_body(rows, parameters))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def infer_body(rows: Sequence[Row], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Encodes rows as a KServe v2 request in JSON."""
    lists = [row["items"] or [] for row in rows]
    width = max(1, *map(len, lists))
    batch = len(rows)
    return {
        "parameters": dict(parameters),
        "inputs": [
            {"name": "user", "datatype": "INT64", "shape": [batch, 1], "data": [row["user"] for row in rows]},
            {
                "name": "items",
                "datatype": "INT64",
                "shape": [batch, width],
                "data": [value for entry in lists for value in [*entry, *[0] * (width - len(entry))]],
            },
            {"name": "items.lengths", "datatype": "INT64", "shape": [batch, 1], "data": [len(e) for e in lists]},
        ],
    }


def answered(content: Any) -> tuple[str, np.ndarray]:
    """Returns the snapshot that an answer names, and its parts (B, 6)."""
    output = content["outputs"][0]
    return content["parameters"]["snapshot"], np.array(output["data"], np.float64).reshape(output["shape"])


def difference(answers: Answers, rows: Sequence[Row], parts: np.ndarray) -> float:
    """Returns the largest relative error of an answer against its snapshot; a right answer stays below TOLERANCE."""
    expected = answers.parts(rows)
    return float((np.abs(parts - expected) / np.maximum(1.0, np.abs(expected))).max())


class Clients(AskingThreads):
    """Runs `count` threads that query one model until stopped.

    wrong: descriptions of what was not as it must be.
    """

    def __init__(self, port: int, world: World, count: int, *, may_be_away: bool = False) -> None:
        super().__init__()
        self.world = world
        self.statuses: Counter[int] = Counter()
        self.snapshots: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._may_be_away = may_be_away
        self._threads = [threading.Thread(target=self._run, args=(port, seed)) for seed in range(count)]

    def _run(self, port: int, seed: int) -> None:
        rng = np.random.default_rng(1000 + seed)
        try:
            with Asker(port) as asker:
                while not self._stop.is_set():
                    self._ask(asker, [self.world.row(rng) for _ in range(int(rng.integers(1, 9)))])
        except Exception as error:  # An exception in a client must not go unnoticed.
            self._note(f"client {seed}: {type(error).__name__}: {error}")

    def _ask(self, asker: Asker, rows: list[Row]) -> None:
        status, content = asker.infer(self.world.name, rows)
        with self._lock:
            self.statuses[status] += 1
        if status != 200:
            if not (self._may_be_away and status in (404, 503)):
                self._note(f"{status}: {content}")
            return
        snapshot, parts = answered(content)
        with self._lock:
            self.snapshots[snapshot] += 1
        answers = self.world.answers.get(snapshot)
        if answers is None:
            self._note(f"an answer from snapshot {snapshot}, which was never published")
            return
        found = difference(answers, rows, parts)
        if not found <= TOLERANCE:
            others = [
                name for name, other in list(self.world.answers.items()) if difference(other, rows, parts) <= TOLERANCE
            ]
            self._note(f"{found:.3g} from what {snapshot} answers; as {others or 'no snapshot'} would; rows {rows}")

    def _note(self, text: str) -> None:
        with self._lock:
            self.wrong.append(text)


def until(condition: Callable[[], Any], what: str | Callable[[], str]) -> None:
    """Waits, within bounds, for what another process will do.

    what: names it in the error message.
    """
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {WAIT_S:g} s: {what() if callable(what) else what}")
        time.sleep(0.01)


class Operator(Asker):
    """Sends the control commands of one model."""

    def __init__(self, port: int, model: str) -> None:
        super().__init__(port)
        self.model = model

    def command(self, verb: str, content: dict[str, Any] | None = None) -> None:
        """Sends a control command, which must succeed, as the owner of the server's machine."""
        owner = {"Authorization": f"Bearer {read_own_token(self.port)}"}
        status, answer = self.post(f"/v2/repository/models/{self.model}/{verb}", content or {}, owner)
        assert status == 200, f"{verb}: {status} {answer}"

    def state(self) -> dict[str, Any]:
        """Returns the server's report on the model's snapshots."""
        status, answer = self.get(f"/v2/repository/models/{self.model}/snapshots")
        assert status == 200, answer
        return answer

    def served(self) -> str:
        """Returns the snapshot that is served."""
        return str(self.state()["served"]["id"])

    def wait_for(self, snapshot: str) -> None:
        """Waits until a snapshot is served."""
        until(lambda: self.served() == snapshot, lambda: f"{snapshot} is served; the server says {self.state()}")
