"""Measures the stages of training steps: how long each one works, and which one holds the others up.

The stages that fetch data run in threads of their own, ahead of the step; the others follow each other in the step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from trainer.models.base import FeatureEmbeddings
from trainer.rank_times import RankReport

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Stages that run beside the step, and stages of the step, in the order of the data.
AHEAD = ("read", "features")
IN_STEP = ("lookup", "dense", "update")


@dataclass(frozen=True)
class StageReport:
    """The work of one stage."""

    name: str
    threads: int
    #: Seconds of work of all its threads, without waiting for other stages.
    seconds: float
    #: `seconds` a thread, as a share of the time of all steps. The stage nearest to 1 holds the others up.
    share: float


@dataclass(frozen=True)
class ProfileReport:
    """The stages of the steps that one call trained."""

    steps: int
    #: Time from the first step to the last, without evaluations.
    seconds: float
    stages: tuple[StageReport, ...]
    #: Seconds in which the step waited for data.
    waited_seconds: float
    #: The stage that holds the others up: `read`, `features`, or the longest one of the step.
    bound_by: str
    #: The steps of each rank; empty in one process.
    ranks: tuple[RankReport, ...] = ()

    def short(self) -> str:
        """Returns the stage that holds the others up, and its share of the time."""
        share = next(stage.share for stage in self.stages if stage.name == self.bound_by)
        return f"{self.bound_by} {share:.0%}"

    def line(self) -> str:
        """Returns all stages in one line."""
        stages = ", ".join(f"{stage.name} {stage.share:.0%}" for stage in self.stages)
        return f"{stages}; waited for data {self.waited_seconds / self.seconds:.0%}; held up by {self.bound_by}"


class StepProfile:
    """Adds up the seconds of each stage. Thread-safe.

    threads: of the stages that have more than one.
    """

    def __init__(self, threads: Mapping[str, int] | None = None) -> None:
        self._threads = dict(threads or {})
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys((*AHEAD, *IN_STEP, "wait"), 0.0)
        self._steps = 0
        self._all = 0.0

    def add(self, stage: str, seconds: float) -> None:
        """Adds work of a stage."""
        with self._lock:
            self._seconds[stage] += seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of the block as work of a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def timed(self, name: str, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yields the items; the time that each one takes to come counts for a stage."""
        iterator = iter(items)
        while True:
            began = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.add(name, time.perf_counter() - began)
            yield item

    def working(self, name: str, work: Callable[[_Item], _Result]) -> Callable[[_Item], _Result]:
        """Returns `work`, whose time counts for a stage."""

        def measured(item: _Item) -> _Result:
            with self.stage(name):
                return work(item)

        return measured

    def seconds(self, stage: str) -> float:
        """Returns the seconds of a stage so far, or those in which the step waited for data (`wait`)."""
        return self._seconds[stage]

    @property
    def lookup_seconds(self) -> float:
        """Seconds of lookups so far; the step takes them out of those of its dense part."""
        return self._seconds["lookup"]

    def step(self, seconds: float) -> None:
        """Counts a step and the time since the one before."""
        self._steps += 1
        self._all += seconds

    def report(self) -> ProfileReport | None:
        """Returns the figures so far; None before the first step."""
        if self._steps == 0 or self._all <= 0.0:
            return None
        with self._lock:
            seconds = dict(self._seconds)
        stages = []
        for name in (*AHEAD, *IN_STEP):
            threads = self._threads.get(name, 1)
            stages.append(StageReport(name, threads, seconds[name], seconds[name] / threads / self._all))
        in_step = [stage for stage in stages if stage.name in IN_STEP]
        ahead = max((stage for stage in stages if stage.name in AHEAD), key=lambda stage: stage.share)
        whole_step = sum(stage.share for stage in in_step)
        slowest = ahead if ahead.share > whole_step else max(in_step, key=lambda stage: stage.share)
        return ProfileReport(self._steps, self._all, tuple(stages), seconds["wait"], slowest.name)


def time_lookups(model: nn.Module, profile: StepProfile) -> None:
    """Counts the lookups of a model's features, while it trains, as work of the stage `lookup`."""
    for module in model.modules():
        if isinstance(module, FeatureEmbeddings):
            # Not hooks, which torch.compile would trace.
            object.__setattr__(module, "forward", _timed(module, module.forward, profile))


def _timed(module: nn.Module, forward: Callable[..., _Result], profile: StepProfile) -> Callable[..., _Result]:
    def timed(*inputs: object) -> _Result:
        if not module.training:
            return forward(*inputs)
        with profile.stage("lookup"):
            return forward(*inputs)

    return timed
