"""Holds what a part of the GPU's benchmark needs, and reports what it finds at once, line by line."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.catalog import Run
from benchmarks.gpu.device import Gpu, Limits, find_gpu, measure_limits
from benchmarks.gpu.world import FULL, QUICK, TOY, Sizes, World
from benchmarks.machine import available_bytes
from benchmarks.measure import Contestant, Samples, median
from benchmarks.report import Report, Row, figure

SESSIONS = (1, 2, 4, 8)
# Other processors of a large machine do not slow down a GPU; they slow down the threads that drive it, a little.
_QUIET_SHARE = 0.25


@dataclass(frozen=True)
class Settings:
    """The settings of a GPU benchmark."""

    #: Runs on the processor, at toy sizes.
    simulated: bool = False
    quick: bool = False
    #: Seconds of the soak; None: the usual.
    soak_s: float | None = None
    #: File to draw the picture into.
    svg: Path | None = None
    #: Rows of each table; None: the usual.
    rows: int | None = None
    #: Bytes of the host's memory that tables may use; None: what the kernel calls available. On some machines memory
    #: starts small and grows as it is used.
    host_bytes: int | None = None

    @property
    def sizes(self) -> Sizes:
        """The sizes of the model and its batches."""
        chosen = TOY if self.simulated else QUICK if self.quick else FULL
        return chosen if self.rows is None else Sizes(**{**asdict(chosen), "table_rows": self.rows})


class LiveReport(Report):
    """Prints each row as it is added and passes it on, so that none is lost when the process ends early."""

    def __init__(self, name: str, quick: bool, tell: Callable[[str, Any], None] | None = None) -> None:
        """tell: called with "row" and its values for each row, and likewise for each remark."""
        super().__init__(name, quick)
        self._tell = tell or (lambda kind, value: None)

    def pairs(self, *arguments: Any, **named: Any) -> None:
        """See Report."""
        before = len(self.rows)
        super().pairs(*arguments, **named)
        for row in self.rows[before:]:
            print(line_of(row), flush=True)
            self._tell("row", asdict(row))

    def remark(self, text: str) -> None:
        """See Report."""
        if text not in self.remarks:
            print(f"  {text}", flush=True)
            self._tell("remark", text)
        super().remark(text)


def line_of(row: Row) -> str:
    """Returns one row as a line of text."""
    spread = f"{row.spread[0]:.2f}..{row.spread[1]:.2f}"
    target = "" if row.target is None else f", target {row.target:.3g}: {'yes' if row.holds else 'NO'}"
    return (
        f"  {row.claim}: {figure(row.ours)} {row.unit}, {row.against} {figure(row.other)}, ratio {row.ratio:.2f} "
        f"({spread}, {row.repeats} repeats{'!' if row.disturbed else ''}){target}"
    )


@dataclass
class Bench:
    """The objects that the parts of one process share."""

    run: Run
    settings: Settings
    gpu: Gpu
    _limits: Limits | None = field(default=None, repr=False)
    #: Values that one part leaves to later ones.
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    _world: World | None = field(default=None, repr=False)
    _endings: list[Callable[[], None]] = field(default_factory=list, repr=False)

    @classmethod
    def open(cls, run: Run, settings: Settings) -> Bench:
        """Finds the GPU. Raises ConfigError when there is none."""
        gpu = find_gpu(simulated=settings.simulated)
        torch.set_num_threads(1)  # as in a session: the processor only checks scores here
        return cls(run, settings, gpu)

    def at_end(self, ending: Callable[[], None]) -> None:
        """Registers a function for `close` to call; the last one registered is called first."""
        self._endings.append(ending)

    def close(self) -> None:
        """Releases what the parts share."""
        while self._endings:
            self._endings.pop()()
        self.kept.clear()

    @property
    def world(self) -> World:
        """The model, published on first use."""
        if self._world is None:
            self._world = World(self.run.work / "models", self.settings.sizes)
        return self._world

    @property
    def sizes(self) -> Sizes:
        """The sizes of the model and its batches."""
        return self.settings.sizes

    @property
    def is_simulated(self) -> bool:
        """Returns whether this is a simulation, whose figures mean nothing."""
        return self.settings.simulated

    @property
    def host_bytes(self) -> int:
        """The bytes of the host's memory that tables may use; adds a remark that says so."""
        given = self.settings.host_bytes
        found = available_bytes() if given is None else given
        how = "available by the kernel's account" if given is None else "as --host-gib says"
        self.remark(f"memory of the host for tables: {found / 2**30:.0f} GiB, {how}")
        return found

    @property
    def limits(self) -> Limits:
        """The limits of the GPU, measured once."""
        if self._limits is None:
            self._limits = measure_limits(self.gpu)
            self.remark(str(self._limits))
        return self._limits

    def seconds(self, full: float, quick: float) -> float:
        """Returns a duration in seconds; next to nothing in a simulation."""
        return 0.01 if self.is_simulated else quick if self.settings.quick else full

    def times(self, full: int, quick: int, toy: int) -> int:
        """Returns a number of repetitions."""
        return toy if self.is_simulated else quick if self.settings.quick else full

    @property
    def repeats(self) -> int:
        """The repeats of each measurement."""
        return 2 if self.is_simulated else 3 if self.settings.quick else min(5, self.run.repeats)

    def interleave(self, contestants: Mapping[str, Contestant], *, max_s: float) -> Samples:
        """See Run.interleave."""
        quiet = math.inf if self.is_simulated else max(1.0, _QUIET_SHARE * (os.cpu_count() or 1))
        return self.run.interleave(contestants, max_s=max_s, quiet_cores=quiet)

    def compare(self, claim: str, samples: Samples, against: str, *, target: float | None = None, **named: Any) -> None:
        """Adds a row from samples; without a target in a simulation."""
        self.run.report.compare(self.claim(claim), samples, against, target=self.target(target), **named)

    def pairs(
        self,
        claim: str,
        ours: Sequence[float],
        other: Sequence[float],
        against: str,
        *,
        target: float | None = None,
        counts: bool = False,
        **named: Any,
    ) -> None:
        """Adds a row from pairs; without a target in a simulation.

        counts: the figures are counts, which are as true in a simulation as on a GPU.
        """
        wanted = target if counts else self.target(target)
        self.run.report.pairs(self.claim(claim), ours, other, against, target=wanted, **named)

    def remark(self, text: str) -> None:
        """Adds a line beside the rows."""
        self.run.report.remark(self.claim(text))

    def claim(self, text: str) -> str:
        """Marks the text as simulated in a simulation."""
        return f"simulated, no result: {text}" if self.is_simulated else text

    def target(self, target: float | None) -> float | None:
        """Returns the target; None in a simulation."""
        return None if self.is_simulated else target


def latency_us(work: Callable[[], object], piece_s: float) -> Contestant:
    """Measures the median time of a call, in microseconds, over calls for about piece_s."""

    def measured(turn: int) -> float:
        took: list[float] = []
        ends = time.perf_counter() + piece_s
        while (began := time.perf_counter()) < ends or len(took) < 5:
            work()
            took.append(time.perf_counter() - began)
        return median(took) * 1e6

    return measured
