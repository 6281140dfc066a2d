"""Times launches by the GPU's own clock: an event before and after each, with all launches of a repeat under way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from benchmarks.gpu.device import WatchedDriver
from benchmarks.measure import Contestant
from serving.gpu.driver import Stream

Launch = Callable[[int], None]


class Timed:
    """Times launches on one stream. us: of every launch that counted."""

    def __init__(self, driver: WatchedDriver, stream: Stream, launch: Launch, *, times: int, run_up: int) -> None:
        """Sets up the measurement without launching anything.

        times: launches of a repeat. run_up: launches before them, which do not count. launch: given a rising number.
        """
        self.us: list[float] = []
        self._driver, self._stream, self._launch = driver, stream, launch
        self._times, self._run_up = times, run_up
        self._next = 0

    def run(self, turn: int) -> float:
        """Runs a repeat; returns the median time of a launch, in microseconds."""
        driver, clock = self._driver, self._driver.clock
        driver.enter_thread()
        for _ in range(self._run_up):
            self._put()
        marks = [clock.mark(self._stream)]
        for _ in range(self._times):
            self._put()
            marks.append(clock.mark(self._stream))
        done = driver.new_event()
        driver.record(done, self._stream)
        driver.synchronize(done)
        took = [max(clock.us(first, last), 1e-3) for first, last in zip(marks, marks[1:], strict=False)]
        if turn:
            self.us += took
        return float(np.median(took))

    def per_second(self, amount: float) -> Contestant:
        """Returns a contestant that measures the same as a rate: `amount` of something for each launch."""
        return lambda turn: amount / self.run(turn) * 1e6

    def percentile(self, share: float) -> float:
        """Returns a percentile of all launches that counted, in microseconds; NaN when there are none."""
        return float(np.percentile(self.us, share)) if self.us else float("nan")

    def _put(self) -> None:
        self._launch(self._next)
        self._next += 1


def largest(names: Sequence[str]) -> Callable[[Mapping[str, float]], float]:
    """Returns the best figure of some contestants, repeat by repeat."""
    return lambda figures: max(figures[name] for name in names)


def forget() -> None:
    """Returns unreferenced memory to the GPU, so that the next table fits."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
