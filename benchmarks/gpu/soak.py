"""Runs mixed batches on 1 to 4 sessions for a given time, with new weights every second; checks memory and scores."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.end_to_end import TENTH
from benchmarks.gpu.served import Callers, Served
from benchmarks.gpu.world import TOLERANCE
from serving.engine.requests import InferenceResult
from storage.features import Column

_SOAK_S, _QUICK_S, _TOY_S = 20.0, 6.0, 0.6
_CYCLE = (2, 3, 4, 1)
_UNDER_WAY = 6
_ROWS = 20_000
# The least number of rounds; with fewer there is no first and last quarter.
_ROUNDS = 2
# One answer in this many is computed again on the processor.
_CHECK_EVERY = 20
_MOST_WAITING = 64
# How much more memory the last quarter may use than the first.
_GROWTH, _SLACK_BYTES = 1.01, 1 << 20


def soak(bench: Bench) -> None:
    """Runs for `--soak` seconds. Memory is read at the end of each round of 1 to 4 sessions."""
    usual = bench.times(int(_SOAK_S * 1000), int(_QUICK_S * 1000), int(_TOY_S * 1000)) / 1000
    seconds = usual if bench.settings.soak_s is None else bench.settings.soak_s
    step_s = min(1.0, seconds / 12)
    largest = max(bench.sizes.batches)
    rng = np.random.default_rng(7)
    with Served(bench, "fp32", largest, hbm_share=TENTH, exact=False, most_rows=_ROWS) as served:
        requests = [served.requests(1, int(size))[0] for size in rng.integers(1, largest + 1, bench.times(64, 32, 8))]
        judge = Judge()
        memory: list[tuple[int, int, int]] = []
        with Callers(served.model, requests, _UNDER_WAY, hear=judge.hear) as load:
            ends = time.monotonic() + seconds
            number = 0
            while time.monotonic() < ends or number % len(_CYCLE) or len(memory) < _ROUNDS:
                served.model.resize(_CYCLE[number % len(_CYCLE)])
                number += 1
                graph = served.world.other_weights(served.graph, number % 50)
                snapshot = served.snapshot(graph, number)
                # As for a delta: replayed on the candidate, then served.
                columns = requests[number % len(requests)]
                parts = served.model.parts
                parts.score([parts.features(columns, columns["ids"].rows)], snapshot)
                served.model.history.switch(snapshot)
                due = time.monotonic() + step_s
                judge.check(served, due)
                time.sleep(max(0.0, due - time.monotonic()))
                if number % len(_CYCLE) == 0:
                    now = bench.gpu.driver.memory()
                    memory.append((now.device, now.pinned, now.total - now.free))
            answered, rows = len(load.answered), judge.rows
        judge.check(served, time.monotonic() + 30.0)
        lookups, misses = served.asked()
    what = f"soak of {seconds:.0f} s, 1 to {max(_CYCLE)} sessions, batches of 1 to {largest}"
    _memory_rows(bench, what, memory)
    bench.pairs(
        f"{what}: wrong scores",
        [judge.wrong],
        [0],
        "none",
        unit="batches",
        target=1.0,
        counts=True,
        less_is_better=True,
    )
    bench.remark(
        f"{what}: {answered:,} batches, {rows:,} samples, {judge.checked} batches checked, largest difference "
        f"{judge.worst:.2g}; {number} times new weights and sessions; {lookups:,} ids looked up on the GPU, "
        f"{100 * misses / max(1, lookups):.1f} % of them missed"
    )
    if misses == lookups:
        raise AssertionError(f"none of {lookups} ids was found on the GPU")
    if judge.checked == 0:
        raise AssertionError("no batch was checked")


def _memory_rows(bench: Bench, what: str, memory: list[tuple[int, int, int]]) -> None:
    """Adds rows that compare the last quarter with the first."""
    quarter = max(1, len(memory) // 4)
    for place, name in enumerate(("device", "pinned", "all of the GPU's")):
        parts = (memory[:quarter], memory[-quarter:])
        first, last = (float(np.median([each[place] for each in part])) for part in parts)
        bench.pairs(
            f"{what}: {name} memory, last quarter",
            [last / 2**20],
            [(first * _GROWTH + _SLACK_BYTES) / 2**20],
            "first quarter, 1 % and 1 MiB more",
            unit="MiB",
            # torch keeps what it has allocated, so the GPU's memory in use settles late.
            target=1.0 if place < 2 else None,
            counts=True,
            less_is_better=True,
        )


class Judge:
    """Computes some answers again on the processor. rows: of all answers; wrong, checked: batches."""

    def __init__(self) -> None:
        self.rows = self.wrong = self.checked = 0
        self.worst = 0.0
        self._heard = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Mapping[str, Column], InferenceResult]] = deque(maxlen=_MOST_WAITING)

    def hear(self, columns: Mapping[str, Column], result: InferenceResult) -> None:
        """Receives each answer."""
        self._heard += 1
        self.rows += columns["ids"].rows
        if self._heard % _CHECK_EVERY == 1:
            with self._lock:
                self._waiting.append((columns, result))

    def check(self, served: Served, until: float) -> None:
        """Computes the answers that wait, as long as there is time."""
        parts = served.model.parts
        while time.monotonic() < until:
            with self._lock:
                if not self._waiting:
                    return
                columns, result = self._waiting.popleft()
            features = parts.features(columns, columns["ids"].rows)
            expected = parts.score_once(features, result.snapshot, parts.processor)[0]
            differs = float(np.abs(result.outputs[0] - expected).max())
            self.checked += 1
            self.worst = max(self.worst, differs)
            self.wrong += not differs <= TOLERANCE["fp32"]
