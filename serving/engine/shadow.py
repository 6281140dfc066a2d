"""Scores copies of live requests on another snapshot, in spare cycles, and compares; nobody gets its answers.

The main arm never waits for it. A request is kept after its answer was sent, in a bounded queue; when that is full, or
the main arm has a backlog, the request is dropped and counted. One thread works the queue off, always on the processor:
it begins a slice of a few rows only while no request waits and a core is free, and rests after each three times as long
as it computed. It keeps the priority of the other threads on purpose: one of lower priority that the system takes off a
core while it holds the interpreter's lock would stop the main arm.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from serving.engine.recent import columns_bytes, copied, rows_of
from serving.engine.replay import SLICE_ROWS, ModelParts
from serving.engine.requests import InferenceResult, QueuedRequest
from serving.engine.shadow_comparison import Comparison
from serving.pipeline.snapshot import SnapshotHistory
from storage.errors import EmberlineError
from storage.features import Column
from storage.features.flat import FlatColumns

logger = logging.getLogger("emberline.serving")

# Bounds of the queue; a request that is larger alone is dropped.
MAX_WAITING = 64
MAX_BYTES = 16 << 20
# Of so many requests, one is computed by the main arm's snapshot too, on the same thread, so that times compare.
_TIMED_EVERY = 4
# A slice takes at most this share of one core, so that few requests meet one.
_DUTY = 0.25
# Seconds between looks for requests, while there are none.
_IDLE_LOOK_S = 0.005
# Seconds between looks for spare cycles, while there are none.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.001, 0.004


class Arm(Protocol):
    """Is the part of a loaded version that a shadow uses."""

    name: str
    history: SnapshotHistory
    parts: ModelParts

    @property
    def has_spare_cycles(self) -> bool:
        """Returns whether no request waits, and a core is left for work that nobody waits for."""


@dataclass(frozen=True)
class ShadowSettings:
    """Says what a shadow samples and for how long."""

    #: Fraction of the main arm's requests.
    share: float
    #: Rows whose overlap is compared.
    top_k: int
    #: It takes no requests after this time, in seconds since 1970; 0.0 for no end.
    until: float = 0.0


@dataclass(frozen=True)
class Dropped:
    """Counts sampled requests that were not scored, by the reason."""

    #: The main arm had more requests waiting than sessions.
    busy: int = 0
    #: The queue was full, because there were no spare cycles.
    full: int = 0
    #: They were too large for the queue.
    large: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    """A request that the main arm has answered, with its answer. Nobody writes to its arrays any more."""

    #: Columns and outputs of the whole batch that it was part of, and the rows of that.
    columns: Mapping[str, Column]
    outputs: Sequence[np.ndarray]
    batch: int
    #: Its own rows in them.
    start: int
    stop: int
    took_ns: int
    size_bytes: int

    def part(self, start: int, stop: int) -> tuple[dict[str, Column], int]:
        """Returns some of its rows as a request."""
        return rows_of(self.columns, self.batch, self.start + start, self.start + stop), stop - start

    @property
    def rows(self) -> int:
        """Returns the number of its rows."""
        return self.stop - self.start

    def output(self, place: int) -> np.ndarray:
        """Returns what the main arm answered."""
        return self.outputs[place][self.start : self.stop]


class Shadow:
    """Scores a share of the requests of one version on the snapshot that another, or the same, keeps for it.

    Thread-safe. `close` ends it; until the pin on its snapshot is released, its version must stay open.
    """

    def __init__(
        self,
        main: Arm,
        shadow: Arm,
        settings: ShadowSettings,
        comparison: Comparison,
        before: threading.Thread | None = None,
    ) -> None:
        """Starts its thread.

        main: answers the requests. shadow: its history holds the snapshot, see `set_shadow`. before: the thread of a
        closed shadow, which may still work on a slice; it is waited for, because a pipeline is for one thread at a
        time.
        """
        self.main, self.shadow = main, shadow
        self.settings = settings
        self.comparison = comparison
        self._random = random.Random()
        self._lock = threading.Lock()
        self._waiting: deque[_Kept] = deque()
        self._bytes = 0
        self._dropped = {"busy": 0, "full": 0, "large": 0}
        self._closed = threading.Event()
        self._is_working = False
        self._outputs = self._places_of_outputs()
        #: Scores the copies.
        self.thread = threading.Thread(target=self._run, args=(before,), name=f"{main.name}-shadow", daemon=True)
        self.thread.start()

    @property
    def is_over(self) -> bool:
        """Returns whether the time that it was given has passed."""
        return bool(self.settings.until) and time.time() >= self.settings.until

    @property
    def dropped(self) -> Dropped:
        """Returns what was dropped so far."""
        with self._lock:
            return Dropped(**self._dropped)

    @property
    def waiting(self) -> int:
        """Returns the number of requests that are kept or worked on, and not compared yet."""
        return len(self._waiting) + self._is_working

    def pick(self, call: QueuedRequest, is_busy: bool) -> list[int]:
        """Draws which of the requests that `call` stands for are to be scored. is_busy: whether to drop them all."""
        share = self.settings.share
        picked = [index for index in range(len(call.rows_of_each)) if self._random.random() < share]
        if not picked or self.is_over:
            return []
        if is_busy:
            self._drop("busy", len(picked))
            return []
        return picked

    def offer(self, call: QueuedRequest, result: InferenceResult, picked: Sequence[int], ended_ns: int) -> None:
        """Keeps picked requests that were answered at `ended_ns`. It must not raise: the session goes on after it."""
        try:
            self._offer(call, result, picked, ended_ns)
        except Exception as error:
            logger.exception("%s: a request could not be kept for the shadow", self.main.name)
            self.comparison.failed(str(error) or type(error).__name__)

    def close(self) -> None:
        """Takes nothing more; what waits is forgotten. The thread ends after the slice that it works on."""
        with self._lock:
            self._closed.set()
            self._waiting.clear()
            self._bytes = 0

    def _offer(self, call: QueuedRequest, result: InferenceResult, picked: Sequence[int], ended_ns: int) -> None:
        rows, arrivals = call.rows_of_each, call.arrivals_ns
        columns, size = call.columns, sum(values.nbytes for values in result.outputs)
        size += columns.data.nbytes if isinstance(columns, FlatColumns) else columns_bytes(columns)
        if size > MAX_BYTES:
            self._drop("large", len(picked))
            return
        if not isinstance(columns, FlatColumns):
            # They lie in the body of the request, or in a buffer for shared memory, which is needed for others. Columns
            # that native code has made are memory of their own, and the session must not wait for a copy of them.
            columns = copied(columns)
        for index in picked:
            start = sum(rows[:index])
            took_ns = ended_ns - arrivals[index]
            kept = _Kept(columns, result.outputs, call.batch, start, start + rows[index], took_ns, size)
            with self._lock:
                if len(self._waiting) >= MAX_WAITING or self._bytes + size > MAX_BYTES:
                    self._dropped["full"] += 1
                elif not self._closed.is_set():
                    self._waiting.append(kept)
                    self._bytes += size

    def _drop(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self._dropped[reason] += count

    def _places_of_outputs(self) -> list[tuple[str, int, int | None]]:
        """Returns the main arm's outputs, each with its place there and in the shadow; None where that has it not."""
        there = {entry.name: place for place, entry in enumerate(self.shadow.parts.graph.outputs)}
        return [(entry.name, place, there.get(entry.name)) for place, entry in enumerate(self.main.parts.graph.outputs)]

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        torch.set_num_threads(1)  # more threads would take the sessions' cores
        number = 0
        while (kept := self._take()) is not None:
            try:
                self._compare(kept, number)
            except Exception as error:
                known = isinstance(error, EmberlineError)
                text = str(error) or type(error).__name__
                self.comparison.failed(text if known else f"{type(error).__name__}: {text}")
                logger.log(
                    logging.DEBUG if known else logging.WARNING, "%s: the shadow failed: %s", self.main.name, text
                )
            number += 1

    def _take(self) -> _Kept | None:
        self._is_working = False
        while not self._waiting and not self._closed.is_set():
            # Not woken up: the thread would want the interpreter's lock just when a session goes on after an answer.
            time.sleep(_IDLE_LOOK_S)
        with self._lock:
            if self._closed.is_set():
                return None
            kept = self._waiting.popleft()
            self._bytes -= kept.size_bytes
            self._is_working = True
            return kept

    def _compare(self, kept: _Kept, number: int) -> None:
        """Scores a request on the shadow, sometimes on the main arm's snapshot too, in turns; and compares."""
        is_timed = number % _TIMED_EVERY == 0
        order = [True, False] if number % (2 * _TIMED_EVERY) == 0 else [False, True]
        took: dict[bool, int] = {}
        scores: list[np.ndarray] = []
        for is_shadow in order if is_timed else [True]:
            scored = self._score(kept, is_shadow=is_shadow)
            if scored is None and is_shadow:
                return  # it has ended meanwhile
            if scored is not None:
                took[is_shadow] = scored[1]
                scores = scored[0] if is_shadow else scores
        self.comparison.compared(
            [(name, kept.output(at), None if other is None else scores[other]) for name, at, other in self._outputs],
            main_ns=kept.took_ns,
            shadow_ns=took[True],
            again_ns=took.get(False),
        )

    def _score(self, kept: _Kept, *, is_shadow: bool) -> tuple[list[np.ndarray], int] | None:
        """Returns the outputs of a request and the nanoseconds of work; None when the arm has ended, or this has."""
        arm = self.shadow if is_shadow else self.main
        pipeline = arm.parts.shadow_pipeline
        parts: list[list[np.ndarray]] = []
        worked_ns = 0
        for start in range(0, kept.rows, SLICE_ROWS):
            stop = min(start + SLICE_ROWS, kept.rows)
            if not self._wait_for_spare_cycles():
                return None
            snapshot = arm.history.acquire_beside(shadow=is_shadow)
            if snapshot is None:
                return None
            began_ns = time.monotonic_ns()
            try:
                made = pipeline.features([kept.part(start, stop)])
                parts.append(pipeline.score([features for features, _ in made], snapshot).outputs)
            finally:
                arm.history.release(snapshot)
            slice_ns = time.monotonic_ns() - began_ns
            worked_ns += slice_ns
            self._closed.wait(slice_ns / 1e9 * (1 / _DUTY - 1))
        return [np.concatenate(values) for values in zip(*parts, strict=True)], worked_ns

    def _wait_for_spare_cycles(self) -> bool:
        """Waits until the main arm leaves a core; returns False when this was closed."""
        look_s = _FIRST_LOOK_S
        while not self._closed.is_set() and not self.main.has_spare_cycles:
            time.sleep(look_s)
            look_s = min(_LAST_LOOK_S, look_s * 2)
        return not self._closed.is_set()
