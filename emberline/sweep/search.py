"""sweep(): the command `emberline sweep` as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from emberline.sweep.page import write_sweep_page
from emberline.sweep.plan import Direction, plan_of
from emberline.sweep.run import Sweep, TrialResult
from emberline.sweep.space import Sampler, from_mapping
from storage.errors import ConfigError, InvalidInput
from storage.paths import local_path
from trainer.config import TrainConfig, load_config, parse_content


@dataclass(frozen=True)
class SweepReport:
    """The trials of a sweep that came to its end."""

    output: Path
    metric: str
    #: The best trial.
    best: TrialResult
    #: All trials: the complete ones from the best to the worst, then the others.
    trials: tuple[TrialResult, ...]

    @property
    def best_config(self) -> Path:
        """The configuration of the best trial."""
        return self.output / "best.yaml"

    def run(self, trial: TrialResult) -> Path:
        """Returns the folder of a trial's training, for `trainer.load_trained`."""
        return self.output / "trials" / f"{trial.number:04d}" / "run"


def sweep(
    config: TrainConfig | Mapping[str, Any] | Path | str,
    data: Path | str | Sequence[Path | str],
    parameters: Mapping[str, Any],
    *,
    output: Path | str,
    valid: float | Path | str | None = None,
    limit: int | None = None,
    metric: str | None = None,
    direction: Direction | None = None,
    sampler: Sampler = "tpe",
    trials: int | None = None,
    jobs: int = 1,
    seed: int = 1,
    prune: bool = False,
    resume: bool = False,
    track: str | None = None,
    on_end: Callable[[TrialResult], None] = lambda result: None,
) -> SweepReport:
    """Trains a model with many values of its settings, each in a process of its own, and returns all trials.

    parameters: values by dotted path, as in the file of `emberline sweep`: {"optimizer.sparse.lr": {"log": [0.01, 1]},
    "model.dropout": [0.0, 0.2]}. data, valid: files, folders, patterns or URLs; processes share no tables in memory.
    on_end: is called as each trial ends. The other arguments are the command's options (docs/tuning-runs.md). Ctrl-C
    saves the trials under way and raises KeyboardInterrupt; resume goes on with them. Raises ConfigError and
    InvalidInput before the first trial, and InvalidInput when no trial came to its end.
    """
    source = str(config) if isinstance(config, Path | str) else "config"
    if isinstance(config, Path | str):
        config = load_config(config)
    elif not isinstance(config, TrainConfig):
        config = parse_content(config)
    _check_options(jobs, trials, sampler, direction)
    plan = plan_of(
        config,
        from_mapping(parameters, "sweep"),
        _paths("data", data),
        output=local_path(output, "output"),
        source=source,
        valid=valid if valid is None or isinstance(valid, int | float) else _paths("valid", valid)[0],
        limit=limit,
        track=track,
        metric=metric,
        direction=direction,
        sampler=sampler,
        trials=trials,
        jobs=jobs,
        seed=seed,
        prune=prune,
    )
    running = Sweep(plan, resume=resume, on_end=on_end)
    try:
        running.run()
    finally:
        write_sweep_page(plan)
    best = running.best()
    if best is None:
        raise InvalidInput(f"no trial came to its end; {plan.output}/trials/*/log.txt says why")
    return SweepReport(plan.output, plan.metric, best, tuple(running.ranked()))


def _paths(name: str, given: Any) -> list[Path | str]:
    paths = [given] if isinstance(given, Path | str) else given
    if not isinstance(paths, Sequence) or not paths or not all(isinstance(each, Path | str) for each in paths):
        raise InvalidInput(
            f"{name}: trials are processes of their own; expected paths of files, got {type(given).__name__}",
            field=name,
        )
    return list(paths)


def _check_options(jobs: int, trials: int | None, sampler: str, direction: str | None) -> None:
    for name, number in (("jobs", jobs), ("trials", 1 if trials is None else trials)):
        if number < 1:
            raise ConfigError(f"{name} is {number}, expected 1 or more", field=name)
    for name, word, known in (("sampler", sampler, Sampler), ("direction", direction or "maximize", Direction)):
        if word not in get_args(known):
            raise ConfigError(f"{name} is {word!r}, expected one of {', '.join(get_args(known))}", field=name)
