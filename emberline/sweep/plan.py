"""The plan of a sweep: what it tries, how, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberline.comparison.runs import smaller_is_better
from emberline.sweep.check import checked, metrics_of
from emberline.sweep.space import Parameter, Sampler
from storage.errors import InvalidInput
from storage.features.strict_model import did_you_mean
from trainer.config import TrainConfig

Direction = Literal["maximize", "minimize"]
_TRIALS = 20
_TRIALS_OF_GRID = 10_000


@dataclass(frozen=True)
class SweepPlan:
    """Says what a sweep tries, how, and where."""

    config: TrainConfig
    parameters: tuple[Parameter, ...]
    #: Arguments of `emberline train` for every trial, such as --data.
    arguments: tuple[str, ...]
    output: Path
    #: The figure of the last evaluation by which trials are judged, or `loss`.
    metric: str
    minimize: bool = False
    sampler: Sampler = "tpe"
    seed: int = 1
    trials: int = _TRIALS
    jobs: int = 1
    #: Stops trials whose metric after an epoch is worse than the median of the earlier trials.
    prune: bool = False

    @property
    def base(self) -> dict[str, Any]:
        """Returns what the configuration sets, without defaults, which depend on types that a trial may change."""
        return self.config.model_dump(mode="json", exclude_unset=True)

    def described(self) -> dict[str, Any]:
        """Returns what must be the same when the sweep is resumed, and `trials`, as JSON values."""
        return {
            "configuration": self.base,
            "parameters": {each.path: each.text() for each in self.parameters},
            "data": list(self.arguments),
            "metric": self.metric,
            "minimize": self.minimize,
            "sampler": self.sampler,
            "seed": self.seed,
            "prune": self.prune,
            "trials": self.trials,
        }


def plan_of(
    config: TrainConfig,
    parameters: Sequence[Parameter],
    data: Sequence[Path | str],
    *,
    output: Path,
    source: str = "config",
    valid: float | Path | str | None = None,
    limit: int | None = None,
    track: str | None = None,
    metric: str | None = None,
    direction: Direction | None = None,
    sampler: Sampler = "tpe",
    trials: int | None = None,
    jobs: int = 1,
    seed: int = 1,
    prune: bool = False,
) -> SweepPlan:
    """Returns the plan of a sweep, with defaults for what is None.

    source: the name of the configuration, for messages. Raises InvalidInput for a metric that is not measured, and
    ConfigError for values that the configuration takes in no combination.
    """
    metrics = metrics_of(config)
    metric = metric or metrics[0]
    if metric not in (*metrics, "loss"):
        known = [*metrics, "loss"]
        near = did_you_mean(metric, known) or f"; expected one of {', '.join(known)}"
        raise InvalidInput(f"metric: the model is not measured by {metric!r}{near}", field="metric")
    if valid is None and metric != "loss":
        raise InvalidInput(
            f"valid: {metric} is taken on rows to evaluate on; give some (--valid), or choose the metric loss",
            field="valid",
        )
    plan = SweepPlan(
        config=config,
        parameters=tuple(parameters),
        arguments=_arguments(data, valid, limit, track),
        output=output,
        metric=metric,
        minimize=smaller_is_better(metric) if direction is None else direction == "minimize",
        sampler=sampler,
        seed=seed,
        trials=trials or (_TRIALS_OF_GRID if sampler == "grid" else _TRIALS),
        jobs=jobs,
        prune=prune,
    )
    checked(plan.base, plan.parameters, source)
    return plan


def _arguments(
    data: Sequence[Path | str], valid: float | Path | str | None, limit: int | None, track: str | None
) -> tuple[str, ...]:
    words = [word for path in data for word in ("--data", str(path))]
    for option, value in (("--valid", valid), ("--limit", limit), ("--track", track)):
        words += [] if value is None else [option, str(value)]
    return tuple(words)
