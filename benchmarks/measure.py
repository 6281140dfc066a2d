"""Measures things side by side: every repeat measures each of them once, one after the other.

Drift (clock, temperature, neighbours) then affects all alike, and a ratio is taken within a repeat before the median is
taken over repeats. Repeats during which other processes were busy are dropped and counted.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.gauge import CpuGauge

REPEATS = 7
# With fewer clean repeats than this, all repeats count: a figure that is marked is better than none.
CLEAN_AT_LEAST = 3
# A measurement lasts at least this long: the kernel counts processor time in hundredths of a second.
PIECE_S = 0.06
# Work that reads gigabytes at random is measured in a longer piece, after an uncounted run-up. On a virtual machine,
# memory that was idle meanwhile is slow to return (some 100 microseconds for each 2 MB page after a second), most of
# all for the contestant that uses most of it: short alternating pieces would measure the alternation.
STEADY_S, RUN_UP_S = 0.4, 0.25

# Does its work once and returns its figure, mostly something a second; its argument is the number of the repeat.
Contestant = Callable[[int], float]


@dataclass
class Samples:
    """The figures of each contestant, one for each repeat. interrupted: Ctrl-C ended the measurement early."""

    names: tuple[str, ...]
    rounds: list[dict[str, float]] = field(default_factory=list)
    disturbed: list[bool] = field(default_factory=list)
    interrupted: bool = False

    @property
    def is_clean(self) -> bool:
        """Returns whether enough repeats were undisturbed to leave the others out."""
        return self.disturbed.count(False) >= CLEAN_AT_LEAST

    @property
    def kept(self) -> list[dict[str, float]]:
        """The repeats that count."""
        if not self.is_clean:
            return self.rounds
        return [figures for figures, disturbed in zip(self.rounds, self.disturbed, strict=True) if not disturbed]

    @property
    def dropped(self) -> int:
        """The number of repeats that were left out."""
        return len(self.rounds) - len(self.kept)

    def values(self, name: str) -> list[float]:
        """Returns the figures of one contestant that count."""
        return [figures[name] for figures in self.kept]

    def add(self, name: str, of: Callable[[Mapping[str, float]], float]) -> None:
        """Adds a figure that is computed from the others, repeat by repeat."""
        self.names = (*self.names, name)
        for figures in self.rounds:
            figures[name] = of(figures)


def interleave(
    contestants: Mapping[str, Contestant],
    *,
    repeats: int = REPEATS,
    gauge: CpuGauge | None = None,
    max_s: float = 60.0,
) -> Samples:
    """Measures all contestants in turn until there are `repeats` undisturbed repeats, or three times as many in all.

    After max_s it stops as soon as there are CLEAN_AT_LEAST. The first round warms up and is not kept. Ctrl-C ends it
    with the repeats that are complete, and `interrupted` set: the caller reports them and calls nothing more.
    """
    gauge = gauge or CpuGauge()
    samples = Samples(tuple(contestants))
    began = time.monotonic()
    try:
        for turn in range(3 * repeats + 1):
            gauge.start()
            figures = {name: one(turn) for name, one in contestants.items()}
            others = gauge.stop()
            if turn == 0:
                continue
            samples.rounds.append(figures)
            samples.disturbed.append(gauge.is_disturbed(others))
            late = time.monotonic() - began > max_s
            if samples.disturbed.count(False) >= repeats or (late and len(samples.rounds) >= CLEAN_AT_LEAST):
                break
    except KeyboardInterrupt:
        samples.interrupted = True
    return samples


def per_second(
    work: Callable[[int], object], amount: float, *, piece_s: float = PIECE_S, run_up_s: float = 0.0
) -> Contestant:
    """Returns a contestant that repeats `work` for about piece_s and gives `amount` of it a second.

    work: called with a number that rises with every call, so that it can use other ids each time. run_up_s: how long
    it works before each measurement without being measured.
    """
    state = {"next": 0, "times": 0}

    def run(turn: int) -> float:
        if turn == 0 or state["times"] == 0:  # the warm-up determines how many calls fit
            began = time.perf_counter()
            done = 0
            while (taken := time.perf_counter() - began) < piece_s:
                work(state["next"] + done)
                done += 1
            state["next"] += done
            state["times"] = done
            return done * amount / taken
        times = state["times"]
        first = state["next"] + run_up_times(times, piece_s, run_up_s)
        for number in range(state["next"], first):
            work(number)
        began = time.perf_counter()
        for number in range(first, first + times):
            work(number)
        taken = time.perf_counter() - began
        state["next"] = first + times
        return times * amount / taken

    return run


def run_up_times(times: int, piece_s: float, run_up_s: float) -> int:
    """Returns how many calls fit into run_up_s when `times` calls take piece_s."""
    return math.ceil(times * run_up_s / piece_s)


def together(contestants: Sequence[Contestant]) -> Contestant:
    """Runs all of these at once, each on a thread of its own, as one contestant whose figure is their sum."""

    def run(turn: int) -> float:
        start = threading.Barrier(len(contestants))
        figures = [0.0] * len(contestants)
        failures: list[BaseException] = []

        ended = [threading.Event() for _ in contestants]

        def one(index: int) -> None:
            try:
                start.wait(timeout=60.0)
                figures[index] = contestants[index](turn)
            except BaseException as error:
                failures.append(error)
                start.abort()
            finally:
                ended[index].set()

        threads = [threading.Thread(target=one, args=(index,)) for index in range(len(contestants))]
        for thread in threads:
            thread.start()
        wait_for(ended)
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return sum(figures)

    return run


def wait_for(ended: Sequence[threading.Event]) -> None:
    """Waits until all events are set, and only then raises an interruption, so that no thread is left working.

    Does not use Thread.join, which takes a running thread for ended when it is interrupted (CPython 3.11, bpo-45274).
    """
    try:
        for event in ended:
            event.wait()
    except BaseException:
        for event in ended:
            event.wait()
        raise


def median(values: Sequence[float]) -> float:
    """Returns the median; NaN for no values."""
    return statistics.median(values) if values else float("nan")
