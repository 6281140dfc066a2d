"""Evicts rows that were not used for long, or that training made small: a bounded piece after each step.

Time is divided into periods, and a row carries the number of the period of its last use, its tick. With each new period
a sweep over the table begins: it looks at some of 1,024 parts of the rows after each step, and is done when the period
is. Which rows it evicts at which step follows from ids, steps and times alone, so that a resumed run does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from storage._table import TrainingTable
from storage.errors import ConfigError

# A period is so much of the time after which a row goes.
_PERIODS = 16
# After a step, a sweep looks at no more rows, and evicts no more, but for its last part. It takes longer then.
_LOOKED_AT_ROWS = 16_384
_EVICTED_ROWS = 2048
# The steps of a period when rows go by their norm alone.
_NORM_PERIOD_STEPS = 1000


@dataclass(frozen=True)
class Eviction:
    """When rows are evicted: by any of the conditions that are given. Raises ConfigError for values out of range.

    after_steps, after_seconds: a row goes when no training used it for so long. below_norm: a row goes when its
    Euclidean norm is smaller and it was not used for a whole period. period_steps: steps of a period; None is a
    sixteenth of after_steps or after_seconds, and 1,000 steps without both. Rows go up to three periods late, and later
    when more than 2,048 are due a step.
    """

    after_steps: int | None = None
    after_seconds: float | None = None
    below_norm: float | None = None
    period_steps: int | None = None

    def __post_init__(self) -> None:
        if self.after_steps is None and self.after_seconds is None and self.below_norm is None:
            raise ConfigError(
                "eviction: expected after_steps, after_seconds or below_norm; leave eviction out to keep every row",
                field="eviction",
            )
        for name, least in (("after_steps", 1), ("after_seconds", None), ("below_norm", None), ("period_steps", 1)):
            value = getattr(self, name)
            if value is not None and not (value >= least if least else 0 < value < math.inf):
                expected = "1 or more" if least else "a finite number above 0"
                raise ConfigError(f"eviction: {name} is {value}, expected {expected}", field=f"eviction.{name}")

    @property
    def by_age(self) -> bool:
        """True when rows go because they were not used for long."""
        return self.after_steps is not None or self.after_seconds is not None

    def ends_period(self, steps: int, seconds: float) -> bool:
        """Returns whether a period that has so many steps and seconds is over."""
        if self.period_steps is not None:
            return steps >= self.period_steps
        if self.after_steps is not None and steps >= max(1, self.after_steps // _PERIODS):
            return True
        if self.after_seconds is not None and seconds >= self.after_seconds / _PERIODS:
            return True
        return not self.by_age and steps >= _NORM_PERIOD_STEPS

    def is_over(self, steps: int, seconds: float) -> bool:
        """Returns whether a row that was not used for so long goes."""
        by_steps = self.after_steps is not None and steps >= self.after_steps
        return by_steps or (self.after_seconds is not None and seconds >= self.after_seconds)


@dataclass(frozen=True)
class Sweep:
    """Says what a sweep evicts, as `TrainingTable.idle` takes it, and how far it is."""

    #: Rows used last at this tick or before go.
    unused: int = 0
    #: Rows used last at a tick in (norm_after, norm_upto] go when their norm is below `norm`.
    norm_after: int = 0
    norm_upto: int = 0
    norm: float = 0.0
    #: The next part.
    part: int = TrainingTable.PARTS
    parts_per_step: int = TrainingTable.PARTS


@dataclass(frozen=True)
class Period:
    """A period began after a step: the number of the step, and the seconds then."""

    tick: int
    step: int
    seconds: float


class Evictable(Protocol):
    """A table that evicts rows, in DRAM or in both tiers."""

    def size(self) -> int: ...
    def set_tick(self, tick: int) -> None: ...
    def idle(self, part: int, unused: int, norm_after: int, norm_upto: int, norm: float) -> NDArray[np.int64]: ...
    def erase(self, ids: NDArray[np.int64]) -> int: ...


class Evictor:
    """Evicts the rows of one table. tick: that of the table so far, at which rows may lie already.

    largest: where each of several ranks has a part of the table, returns the largest of their numbers. Their sweeps go
    on together, so that periods begin at the same step; a sweep then evicts all that it finds in a step.
    """

    def __init__(
        self, eviction: Eviction, table: Evictable, tick: int, largest: Callable[[float], float] | None = None
    ) -> None:
        self.eviction = eviction
        self._largest = largest
        self._table = table
        self._tick = tick
        # The periods whose rows may still be there, oldest first; the last one is under way.
        self._periods: list[Period] = []
        self._sweep = Sweep()

    def after_step(self, step: int, seconds: float) -> int:
        """Does the piece of work that is due after a step. Returns how many rows were evicted.

        step: counts up. seconds: a time that goes on; one that lies before an earlier one counts as that.
        """
        seconds = max(seconds, self._periods[-1].seconds if self._periods else seconds)
        if not self._periods:
            self._begin(step, seconds)
            return 0
        evicted = self._advance_sweep()
        period = self._periods[-1]
        swept = self._sweep.part == TrainingTable.PARTS
        if swept and self.eviction.ends_period(step - period.step, seconds - period.seconds):
            self._begin(step, seconds)
        return evicted

    def to_json_value(self) -> dict[str, Any]:
        """Returns what a commit keeps, as JSON values."""
        return {"periods": [asdict(period) for period in self._periods], "sweep": asdict(self._sweep)}

    def restore(self, tick: int, value: dict[str, Any]) -> None:
        """Continues where `to_json_value` was called. Raises KeyError or TypeError for anything else."""
        self._tick = tick
        self._periods = [Period(**period) for period in value["periods"]]
        self._sweep = Sweep(**value["sweep"])

    def _advance_sweep(self) -> int:
        sweep = self._sweep
        if sweep.part == TrainingTable.PARTS:
            return 0
        end = min(TrainingTable.PARTS, sweep.part + sweep.parts_per_step)
        if sweep.unused == 0 and sweep.norm_after == sweep.norm_upto:
            self._sweep = replace(sweep, part=end)
            return 0
        found: list[NDArray[np.int64]] = []
        part = sweep.part
        while part < end and (self._largest is not None or sum(map(len, found)) < _EVICTED_ROWS):
            found.append(self._table.idle(part, sweep.unused, sweep.norm_after, sweep.norm_upto, sweep.norm))
            part += 1
        self._sweep = replace(sweep, part=part)
        ids = np.concatenate(found)
        return int(self._table.erase(ids)) if len(ids) else 0

    def _begin(self, step: int, seconds: float) -> None:
        """Begins a period, and the sweep that goes with it."""
        steps = step - self._periods[-1].step if self._periods else 1
        self._tick += 1
        self._table.set_tick(self._tick)
        self._periods.append(Period(self._tick, step, seconds))
        unused = self._sweep.unused
        # Rows with a tick were used last before the next period began.
        for period in self._periods:
            if self.eviction.is_over(step - period.step, seconds - period.seconds):
                unused = max(unused, period.tick - 1)
        norm = self.eviction.below_norm or 0.0
        # Rows that were looked at with another norm are looked at again.
        norm_after = self._sweep.norm_upto if norm == self._sweep.norm else 0
        norm_upto = max(0, self._tick - 2) if norm else norm_after
        size = self._table.size() if self._largest is None else int(self._largest(self._table.size()))
        most = max(1, _LOOKED_AT_ROWS * TrainingTable.PARTS // max(1, size))
        parts = min(most, -(-TrainingTable.PARTS // max(1, steps)))
        self._sweep = Sweep(unused, norm_after, norm_upto, norm, 0, parts)
        kept = [period for period in self._periods if period.tick - 1 > unused] if self.eviction.by_age else []
        self._periods = kept or self._periods[-1:]
