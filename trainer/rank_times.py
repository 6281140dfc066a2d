"""Measures the time and the bytes of each rank of a training, and finds the rank that the others wait for.

R ranks.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.ranks import Ranks, Traffic

#: Steps over which the ranks are compared. A rank is slow when it is so over two of these in a row.
WINDOW_STEPS = 50
#: A rank whose own work takes longer than this, by the median of the others, is slow.
SLOW = 1.5


@dataclass(frozen=True)
class RankReport:
    """The steps of one rank."""

    rank: int
    #: The name of its machine.
    host: str
    steps: int
    #: Seconds of all steps, without evaluations and commits.
    seconds: float
    #: Those of `seconds` that went into exchanges: bytes on their way, and waiting for other ranks.
    waited_seconds: float
    #: Those of `seconds` in which the step waited for data.
    data_seconds: float
    #: Bytes that went to other ranks, by kind: `ids`, `rows`, `gradients`, `dense`, and `data`, which were read ahead.
    sent: dict[str, int] = field(default_factory=dict)
    #: Bytes that came from them.
    received: dict[str, int] = field(default_factory=dict)

    @property
    def work_seconds(self) -> float:
        """Seconds of its own work, waiting for data included."""
        return self.seconds - self.waited_seconds

    def line(self) -> str:
        """Returns the figures of a step in one line."""
        own, waited, data = (
            1000 * each / max(1, self.steps) for each in (self.work_seconds, self.waited_seconds, self.data_seconds)
        )
        behind = f", of which {data:.1f} ms waiting for data" if data >= 0.1 else ""
        return (
            f"rank {self.rank} ({self.host}): a step has {own:.1f} ms of own work{behind}, and {waited:.1f} ms of "
            f"exchanges and waiting for others; sends {_sizes(self.sent, self.steps)}; "
            f"receives {_sizes(self.received, self.steps)}"
        )


def short_line(reports: Sequence[RankReport]) -> str:
    """Returns the figures of all ranks in one line."""
    steps = max(1, reports[0].steps)
    fastest, slowest = (of(reports, key=lambda each: each.work_seconds) for of in (min, max))
    waited = sum(each.waited_seconds for each in reports) / max(1e-9, sum(each.seconds for each in reports))
    sent: Counter[str] = Counter()
    for each in reports:
        sent.update(each.sent)
    return (
        f"ranks: {1000 * reports[0].seconds / steps:.1f} ms a step; own work {1000 * fastest.work_seconds / steps:.1f} "
        f"(rank {fastest.rank}) to {1000 * slowest.work_seconds / steps:.1f} ms (rank {slowest.rank}); "
        f"{waited:.0%} in exchanges and waiting for others; each sends {_sizes(sent, steps * len(reports))} a step"
    )


class RankTimes:
    """Measures the steps of this rank, and gets those of the others with the sums that each step makes.

    data_seconds: returns for how long steps have waited for data so far. warn: takes the sentence about a slow rank, at
    the first rank. reading: what the threads that read ahead exchange.
    """

    def __init__(
        self,
        ranks: Ranks,
        data_seconds: Callable[[], float],
        warn: Callable[[str], None],
        reading: Traffic | None = None,
    ) -> None:
        self._ranks = ranks
        self._reading = reading or Traffic()
        self._data_seconds = data_seconds
        self._warn = warn
        #: Sentences about slow ranks.
        self.warnings: list[str] = []
        #: All steps of every rank, as they were at the last `gather`. Other threads may read it.
        self.reports: tuple[RankReport, ...] = ()
        self._epoch_began: tuple[RankReport, ...] = ()
        self._steps = 0
        self._began = self._now()
        self._own = np.zeros(3)  # seconds, those of exchanges, those of waiting for data
        self._bytes: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._last = np.zeros(2)  # of the last step: own work, and what of it was waiting for data
        self._window, self._window_steps = np.zeros((ranks.size, 2)), 0
        self._suspected: int | None = None
        self._named: set[int] = set()

    def begin(self) -> None:
        """Begins a step, before its batch is there."""
        self._began = self._now()

    def end(self) -> None:
        """Ends a step, before anything is saved."""
        (at, sent, received), (then, sent_then, received_then) = self._now(), self._began
        taken = at - then
        self._last = np.array([taken[0] - taken[1], taken[2]])
        self._own += taken
        self._steps += 1
        for all_bytes, now, before in zip(self._bytes, (sent, received), (sent_then, received_then), strict=True):
            all_bytes.update(now)
            all_bytes.subtract(before)

    def _now(self) -> tuple[np.ndarray, Counter[str], Counter[str]]:
        traffic = self._ranks.traffic
        seconds = np.array([time.perf_counter(), traffic.seconds, self._data_seconds()])
        return seconds, Counter(traffic.sent), Counter(traffic.received)

    def facts(self) -> list[float]:
        """Returns what the others get of the last step, (2 R,): places of other ranks are 0, for a sum."""
        given = np.zeros((self._ranks.size, 2))
        given[self._ranks.rank] = self._last
        return [float(each) for each in given.reshape(-1)]

    def receive(self, facts: Sequence[float]) -> None:
        """Takes the sum over ranks of what `facts` returned; all ranks come to the same conclusions from it."""
        given = np.asarray(facts).reshape(-1, 2)
        if not given[:, 0].all():
            return  # before the first step
        self._window += given
        self._window_steps += 1
        if self._window_steps < WINDOW_STEPS:
            return
        work, data = (self._window / self._window_steps).T
        self._window, self._window_steps = np.zeros_like(self._window), 0
        slow = slow_rank(work)
        if slow is not None and slow == self._suspected and slow not in self._named:
            self._named.add(slow)
            text = _slow_text(slow, self._ranks.gather(socket.gethostname())[slow], work, data)
            self.warnings.append(text)
            if self._ranks.is_first:
                self._warn(f"warning: {text}")
        self._suspected = slow

    def gather(self) -> tuple[RankReport, ...]:
        """Returns all steps of every rank so far. Called by all ranks."""
        read_ahead = self._reading.sent, self._reading.received
        sent, received = (dict(of + Counter(read)) for of, read in zip(self._bytes, read_ahead, strict=True))
        seconds, waited, data = (float(each) for each in self._own)
        rank, host = self._ranks.rank, socket.gethostname()
        own = RankReport(rank, host, self._steps, seconds, waited, data, sent, received)
        self.reports = tuple(self._ranks.gather(own))
        return self.reports

    def epoch(self) -> list[RankReport]:
        """Returns the steps of every rank since the last call. Called by all ranks."""
        before, now = self._epoch_began, self.gather()
        self._epoch_began = now
        return [_since(*pair) for pair in zip(now, before, strict=True)] if before else list(now)


def saved_ranks(report: Path) -> list[RankReport]:
    """Returns what a run's report.json says of its ranks; nothing where one process trained it, or none is there."""
    try:
        profile = json.loads(report.read_bytes())["profile"]
        return [RankReport(**each) for each in profile["ranks"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def slow_rank(work: np.ndarray) -> int | None:
    """Returns the rank whose own work (R,) takes much longer than the median of the others; None if none does."""
    slowest = int(work.argmax())
    others = float(np.median(np.delete(work, slowest)))
    return slowest if work[slowest] > SLOW * others else None


def _slow_text(slow: int, host: str, work: np.ndarray, data: np.ndarray) -> str:
    others, others_data = (float(np.median(np.delete(each, slow))) for each in (work, data))
    waits_for_data = data[slow] - others_data > (work[slow] - others) / 2
    cause = (
        f"{1000 * data[slow]:.1f} ms of it it waits for data: a slow disk or network, or too few feature threads"
        if waits_for_data
        else "a slower machine, or one that has other work"
    )
    return (
        f"rank {slow} ({host}) took {work[slow] / others:.1f}x the median of the others over the last "
        f"{2 * WINDOW_STEPS} steps, which wait for it: {1000 * work[slow]:.1f} ms of own work a step, beside "
        f"{1000 * others:.1f} ms; {cause}"
    )


def _since(now: RankReport, then: RankReport) -> RankReport:
    return RankReport(
        now.rank,
        now.host,
        now.steps - then.steps,
        now.seconds - then.seconds,
        now.waited_seconds - then.waited_seconds,
        now.data_seconds - then.data_seconds,
        dict(Counter(now.sent) - Counter(then.sent)),
        dict(Counter(now.received) - Counter(then.received)),
    )


def _sizes(counts: dict[str, int] | Counter[str], steps: int) -> str:
    """Returns the bytes of a step: all, and by kind."""
    total = sum(counts.values())
    kinds = ", ".join(f"{kind} {_size(count / max(1, steps))}" for kind, count in sorted(counts.items()))
    return f"{_size(total / max(1, steps))} ({kinds})" if kinds else "nothing"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
