"""The study of Optuna that chooses values and remembers trials, in DIR/study.db."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from emberline.sweep.space import Choices, Parameter, Range, Sampler, Value
from storage.errors import ConfigError

NAME = "sweep"
_STARTUP_AT_MOST = 10


class Study:
    """The trials of a sweep in a SQLite database, which outlives any crash. Used by one process at a time.

    plan: what the sweep is about; a study that is resumed has to be about the same.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any], parameters: Sequence[Parameter], *, resume: bool) -> None:
        self._optuna = _optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._parameters = tuple(parameters)
        self._plan = plan
        if path.exists() and not resume:
            raise ConfigError(
                f"{path.parent}: holds a sweep already; go on with it (--resume), or choose another folder"
            )
        if resume and not path.exists():
            raise ConfigError(f"{path.parent}: holds no sweep to resume; start it without --resume", field="--resume")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._study = self._optuna.create_study(
            storage=f"sqlite:///{path.absolute()}",
            study_name=NAME,
            direction="minimize" if plan["minimize"] else "maximize",
            load_if_exists=True,
            pruner=self._optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=0),
        )
        before = self._study.user_attrs.get("plan")
        if before is None:
            self._study.set_user_attr("plan", dict(plan))
        else:
            _check_same(before, json.loads(json.dumps(plan)), path.parent)
        self._distributions = {each.path: self._distribution(each) for each in self._parameters}

    def propose(self, values: Mapping[str, Value]) -> None:
        """Has one of the next trials try these values."""
        self._study.enqueue_trial({path: _stored(value) for path, value in values.items()}, skip_if_exists=True)

    def propose_grid(self) -> None:
        """Has the next trials try every combination."""
        axes = [[(each.path, value) for value in each.grid()] for each in self._parameters]
        for point in itertools.product(*axes):
            self.propose(dict(point))

    def ask(self) -> Any:
        """Returns the next trial of Optuna, with its values.

        Each trial draws with a seed of its own, so that a sweep that was stopped goes on as an undisturbed one.
        """
        self._study.sampler = self._sampler(int(self._plan["seed"]) * 1_000_003 + len(self.trials()))
        return self._study.ask(self._distributions)

    def values(self, trial: Any) -> dict[str, Value]:
        """Returns the values of a trial by dotted path."""
        return {path: _read(value, self._named(path)) for path, value in trial.params.items()}

    def tell(self, trial: Any, value: float | None, state: str) -> None:
        """Records the end of a trial: "complete" with its value, "fail" or "pruned"."""
        self._study.tell(trial, value, state=self._optuna.trial.TrialState[state.upper()])

    def trials(self, *states: str) -> list[Any]:
        """Returns the trials in these states, or all that were begun, by number."""
        wanted = {self._optuna.trial.TrialState[state.upper()] for state in states}
        waiting = self._optuna.trial.TrialState.WAITING
        return [
            each
            for each in self._study.get_trials(deepcopy=False)
            if (each.state in wanted if wanted else each.state != waiting)
        ]

    def running(self) -> list[Any]:
        """Returns the trials that an earlier process began and did not end."""
        return [self._optuna.trial.Trial(self._study, each._trial_id) for each in self.trials("running")]

    def best(self) -> Any | None:
        """Returns the best complete trial; None without one."""
        complete = [each for each in self.trials("complete") if each.value is not None]
        if not complete:
            return None
        return (min if self._plan["minimize"] else max)(complete, key=lambda each: each.value)

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        if self._plan["sampler"] != "tpe":
            return samplers.RandomSampler(seed=seed)
        startup = max(3, min(_STARTUP_AT_MOST, int(self._plan["trials"]) // 3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # options that Optuna calls experimental
            return samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)

    def _distribution(self, parameter: Parameter) -> Any:
        made = self._optuna.distributions
        if isinstance(parameter, Choices):
            return made.CategoricalDistribution([_stored(value) for value in parameter.values])
        low, high = parameter.low, parameter.high
        if not parameter.whole:
            return made.FloatDistribution(low, high, log=parameter.log, step=parameter.step)
        step = int(parameter.step or 1)
        return made.IntDistribution(int(low), int(high) - (int(high) - int(low)) % step, log=parameter.log, step=step)

    def _named(self, path: str) -> Parameter:
        return next(each for each in self._parameters if each.path == path)


def _stored(value: Value) -> Any:
    # A database of Optuna holds plain values; lists go in as JSON.
    return json.dumps(value) if isinstance(value, list | dict) else value


def _read(value: Any, parameter: Parameter) -> Value:
    if isinstance(parameter, Range):
        return value
    return next(each for each in parameter.values if _stored(each) == value)


def _check_same(before: Mapping[str, Any], plan: Mapping[str, Any], folder: Path) -> None:
    free = ("trials",)
    changed = [key for key in plan if key not in free and before.get(key) != plan[key]]
    if changed:
        raise ConfigError(
            f"{folder}: the sweep was begun with another {' and '.join(changed)}; only --trials and --jobs may change "
            "on resume. Start a new sweep in another folder",
            field=changed[0],
        )


def _optuna() -> Any:
    try:
        return import_module("optuna")
    except ImportError as error:
        raise ConfigError(
            f"sweep: the package optuna cannot be imported ({error}); run: pip install 'emberline[sweep]'",
            field="sweep",
        ) from None


__all__ = ["Sampler", "Study"]
