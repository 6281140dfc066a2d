"""Every answer is that of exactly one snapshot, by every transport and path, in every batch, while snapshots change."""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Row

THREADS, TURNS, MOST_TURNS, SNAPSHOTS = 6, 60, 2000, 4
# tritonclient adds its own headers to the dictionary that it is given.
BY_PYTHON = {"te": "trailers"}
ONE_BY_ONE = ""
MERGED = "dynamic_batching { }"
WAITING = (
    "dynamic_batching { preferred_batch_size: [ 8, 32 ] max_queue_delay_microseconds: 2000 "
    "priority_levels: 3 default_priority_level: 2 }"
)


def inputs_of(api: Any, rows: Sequence[Row], **options: Any) -> list[Any]:
    def tensor(name: str, dtype: str, values: np.ndarray) -> Any:
        made = api.InferInput(name, list(values.shape), dtype)
        made.set_data_from_numpy(values, **options)
        return made

    lists = [row["items"] or [] for row in rows]
    width = max(map(len, lists))
    padded = np.array([[*values, *[0] * (width - len(values))] for values in lists], np.int64).reshape(len(rows), width)
    return [
        tensor("user", "INT64", np.array([[row["user"]] for row in rows], np.int64)),
        tensor("items", "INT64", padded),
        tensor("items.lengths", "INT32", np.array([[len(values)] for values in lists], np.int32)),
        tensor("items.valid", "BOOL", np.array([[row["items"] is not None] for row in rows])),
    ]


class Asker:
    """Sends requests of one thread, by a transport and a path that are chosen anew for each."""

    def __init__(self, live: Live, seed: int) -> None:
        self.rng = random.Random(seed)
        self.http = tritonclient.http.InferenceServerClient(f"127.0.0.1:{live.server.http_port}")
        self.grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{live.server.grpc_port}")
        self.answers: queue.Queue[Any] = queue.Queue()
        self.grpc.start_stream(lambda result, error: self.answers.put(error or result))
        self.ways: list[tuple[str, Callable[[Sequence[Row], dict[str, Any]], Any]]] = [
            ("HTTP, native", lambda rows, more: self._http(rows, more)),
            ("HTTP, Python", lambda rows, more: self._http(rows, more, headers=dict(BY_PYTHON))),
            ("HTTP, JSON", lambda rows, more: self._http(rows, more, binary=False)),
            ("gRPC, native", lambda rows, more: self._grpc(rows, more)),
            ("gRPC, Python", lambda rows, more: self._grpc(rows, {**more, "compression_algorithm": "gzip"})),
            ("gRPC, stream", self._stream),
        ]

    def close(self) -> None:
        self.grpc.stop_stream()
        self.grpc.close()
        self.http.close()

    def further(self) -> dict[str, Any]:
        """Chooses what goes with a request: priority, timeout, the arm's key."""
        more: dict[str, Any] = {}
        if self.rng.random() < 0.4:
            more["priority"] = self.rng.randint(1, 3)
        if self.rng.random() < 0.3:
            more["timeout"] = 20_000_000
        if self.rng.random() < 0.3:
            more["parameters"] = {"routing_key": f"user-{self.rng.randrange(100)}"}
        return more

    def _http(self, rows: Sequence[Row], more: dict[str, Any], *, binary: bool = True, headers: Any = None) -> Any:
        outputs = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in ("score", "trace")]
        inputs = inputs_of(tritonclient.http, rows, binary_data=binary)
        return self.http.infer(NAME, inputs, outputs=outputs, headers=headers, **more)

    def _grpc(self, rows: Sequence[Row], more: dict[str, Any]) -> Any:
        deadline = 30.0 if self.rng.random() < 0.5 else None
        return self.grpc.infer(NAME, inputs_of(tritonclient.grpc, rows), client_timeout=deadline, **more)

    def _stream(self, rows: Sequence[Row], more: dict[str, Any]) -> Any:
        self.grpc.async_stream_infer(NAME, inputs_of(tritonclient.grpc, rows), **more)
        answer = self.answers.get(timeout=30)
        if isinstance(answer, Exception):
            raise answer
        return answer


def snapshot_of(answer: Any) -> str:
    response = answer.get_response()
    if isinstance(response, dict):
        return str(response["parameters"]["snapshot"])
    return str(response.parameters["snapshot"].string_param)


@pytest.fixture(params=[(ONE_BY_ONE, 1), (MERGED, 1), (MERGED, 2), (WAITING, 1), (WAITING, 2)], ids=str)
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Live]:
    batching, sessions = request.param
    with Live(tmp_path) as made:
        made.world.configure(f"{batching}\ninstance_group [ {{ kind: KIND_CPU count: {sessions} }} ]")
        yield made


@pytest.mark.slow
def test_every_answer_is_that_of_the_snapshot_that_it_names(live: Live) -> None:
    first = live.version()
    live.start()
    live.reaches(first)
    asked: Counter[str] = Counter()
    seen: set[str] = set()
    is_over = threading.Event()

    def ask(seed: int) -> None:
        asker = Asker(live, seed)
        try:
            for turn in range(MOST_TURNS):
                if turn >= TURNS and len(seen) >= SNAPSHOTS:
                    break
                rows = live.world.rows_of(first, asker.rng.randint(1, 12))
                way, send = asker.ways[asker.rng.randrange(len(asker.ways))]
                answer = send(rows, asker.further())
                snapshot = live.snapshots[snapshot_of(answer)]
                expected = snapshot.answer(rows)
                np.testing.assert_array_equal(answer.as_numpy("trace"), expected["trace"], way)
                np.testing.assert_allclose(answer.as_numpy("score"), expected["score"], 1e-5, err_msg=way)
                asked[way] += 1
                seen.add(snapshot.id)
        finally:
            asker.close()

    def publish() -> None:
        latest = first
        while not is_over.wait(0.2):
            latest = live.delta(latest)
            if latest.sequence == 2:
                live.reaches(latest)
                live.repository.canary(NAME, fraction=0.5)
            if latest.sequence > 3 and live.report()["canary"] is not None:
                live.repository.promote(NAME)

    with ThreadPoolExecutor(THREADS + 1) as pool:
        publishing = pool.submit(publish)
        try:
            for done in [pool.submit(ask, seed) for seed in range(THREADS)]:
                done.result()
        finally:
            is_over.set()
        publishing.result()
    assert sum(asked.values()) >= THREADS * TURNS
    assert len(asked) == 6
    assert len(seen) >= SNAPSHOTS
