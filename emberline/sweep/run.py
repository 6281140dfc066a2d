"""Runs the trials of a sweep, some at a time, and keeps what came out in DIR.

DIR/{study.db, trials.json, best.yaml}, and for each trial DIR/trials/NNNN/{config.yaml, log.txt, run/}.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emberline.comparison.runs import RunFigures, read_run
from emberline.sweep.check import content_of, grid_points, present_values
from emberline.sweep.plan import SweepPlan
from emberline.sweep.space import Value
from emberline.sweep.study import Study
from emberline.sweep.trial_process import TrialProcess, begun_with, write_config
from storage.errors import EmberlineError

_POLL_S = 0.2
_PRUNE_POLL_S = 1.0


@dataclass(frozen=True)
class TrialResult:
    """The values of a trial, and its end."""

    number: int
    #: complete, fail, pruned or running.
    state: str
    values: dict[str, Value]
    #: The last value of the metric; None for a trial that did not complete.
    metric: float | None = None
    seconds: float | None = None
    #: The last lines of a trial that failed.
    error: str = ""


@dataclass
class _Running:
    trial: Any
    process: TrialProcess
    values: dict[str, Value]
    reported: set[int] = field(default_factory=set)
    #: The epoch after which it was stopped.
    pruned_at: int = 0


class Sweep:
    """Runs trials until the plan is fulfilled.

    on_change: is called with the number of trials under way as they begin and end; on_end with each result.
    """

    def __init__(
        self,
        plan: SweepPlan,
        *,
        resume: bool = False,
        on_change: Callable[[int], None] = lambda running: None,
        on_end: Callable[[TrialResult], None] = lambda result: None,
    ) -> None:
        self.plan = plan
        self._on_change, self._on_end = on_change, on_end
        self.wanted = plan.trials
        if plan.sampler == "grid":
            self.wanted = min(plan.trials, grid_points(plan.parameters))
        self._study = Study(plan.output / "study.db", plan.described(), plan.parameters, resume=resume)
        self._running: list[_Running] = []
        self._polled = 0.0

    def run(self) -> None:
        """Runs the trials. After Ctrl-C the trials under way save their state, and KeyboardInterrupt is raised."""
        try:
            self._begin_study()
            begun = self._study.running()
            while self._running or begun or self._left() > 0:
                while len(self._running) < self.plan.jobs and (begun or self._left() > 0):
                    self._start(begun.pop(0) if begun else self._study.ask())
                self._watch()
        except BaseException:
            for each in self._running:
                each.process.interrupt()
            for each in self._running:
                each.process.stop()
            raise
        finally:
            self._write_results()

    def results(self) -> list[TrialResult]:
        """Returns all trials so far, by number."""
        return [self._result(trial) for trial in self._study.trials()]

    def best(self) -> TrialResult | None:
        """Returns the best complete trial."""
        trial = self._study.best()
        return None if trial is None else self._result(trial)

    def ranked(self) -> list[TrialResult]:
        """Returns all trials: the complete ones from the best to the worst, then the others."""
        sign = 1.0 if self.plan.minimize else -1.0
        return sorted(
            self.results(),
            key=lambda each: (each.state != "complete", 0.0 if each.metric is None else sign * each.metric),
        )

    def folder(self, number: int) -> Path:
        """Returns the folder of a trial."""
        return self.plan.output / "trials" / f"{number:04d}"

    def _begin_study(self) -> None:
        if self._study.trials():
            return
        if self.plan.sampler == "grid":
            self._study.propose_grid()
        elif (present := present_values(self.plan.config, self.plan.parameters)) is not None:
            self._study.propose(present)

    def _left(self) -> int:
        return self.wanted - len(self._study.trials())

    def _start(self, trial: Any) -> None:
        values = self._study.values(trial)
        folder = self.folder(trial.number)
        content = begun_with(folder) or content_of(self.plan.base, {**self._threads(), **values})
        process = TrialProcess(folder, content, self.plan.arguments)
        self._running.append(_Running(trial, process, values))
        self._on_change(len(self._running))

    def _threads(self) -> dict[str, Value]:
        # Trials side by side share the cores; each would take all but one of them for itself.
        if self.plan.jobs == 1 or self.plan.config.training.threads:
            return {}
        return {"training.threads": max(1, (len(os.sched_getaffinity(0)) - 1) // self.plan.jobs)}

    def _watch(self) -> None:
        time.sleep(_POLL_S)
        if self.plan.prune and time.monotonic() - self._polled >= _PRUNE_POLL_S:
            for each in self._running:
                self._report_epochs(each)
            self._polled = time.monotonic()
        for each in [each for each in self._running if each.process.ended()]:
            self._running.remove(each)
            self._end(each)
            self._on_change(len(self._running))

    def _report_epochs(self, running: _Running) -> None:
        try:
            run = read_run(running.process.run)
        except EmberlineError:
            return  # it has not begun
        for entry in run.epochs:
            epoch = int(entry["epoch"])
            if epoch in running.reported or self.plan.metric not in entry:
                continue
            running.reported.add(epoch)
            running.trial.report(entry[self.plan.metric], epoch)
            if not running.pruned_at and epoch < self._epochs(running.values) and running.trial.should_prune():
                running.pruned_at = epoch
                running.process.interrupt()

    def _epochs(self, values: Mapping[str, Value]) -> int:
        return int(values.get("training.epochs", self.plan.config.training.epochs))

    def _end(self, running: _Running) -> None:
        trial, failure = running.trial, running.process.failure()
        trial.set_user_attr("seconds", running.process.seconds)
        if running.pruned_at and failure:
            trial.set_user_attr("error", f"stopped after epoch {running.pruned_at}: worse than the median")
            self._study.tell(trial, None, "pruned")
        elif failure:
            self._fail(trial, failure)
        else:
            self._complete(trial, read_run(running.process.run))
        result = next(each for each in self.results() if each.number == trial.number)
        self._write_results()
        self._on_end(result)

    def _complete(self, trial: Any, run: RunFigures) -> None:
        value = run.metrics.get(self.plan.metric)
        if value is None:
            self._fail(trial, f"the evaluation gave no {self.plan.metric}: its rows may hold one class only")
        elif not math.isfinite(value):
            self._fail(trial, f"{self.plan.metric} is {value}")
        else:
            self._study.tell(trial, value, "complete")
            best = self._study.best()
            if best is not None and best.number == trial.number:
                self._write_best(trial, value)

    def _fail(self, trial: Any, error: str) -> None:
        trial.set_user_attr("error", error)
        self._study.tell(trial, None, "fail")

    def _write_best(self, trial: Any, value: float) -> None:
        content = content_of(self.plan.base, self._study.values(trial))
        comment = f"The best trial of a sweep, number {trial.number}: {self.plan.metric} {value:.6g}."
        write_config(self.plan.output / "best.yaml", content, comment)

    def _result(self, trial: Any) -> TrialResult:
        return TrialResult(
            number=trial.number,
            state=trial.state.name.lower(),
            values=self._study.values(trial),
            metric=trial.value,
            seconds=trial.user_attrs.get("seconds"),
            error=trial.user_attrs.get("error", ""),
        )

    def _write_results(self) -> None:
        content = {"metric": self.plan.metric, "trials": [asdict(each) for each in self.results()]}
        path = self.plan.output / "trials.json"
        new = path.with_name(".trials.json.new")
        new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(new, path)
