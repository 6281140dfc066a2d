"""Checks the values of a sweep against the configuration, before a trial starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from emberline.sweep.space import Choices, Parameter, Value
from storage.errors import ConfigError
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.config_paths import values_at, with_value

Content = Mapping[str, Any]


def checked(base: Content, parameters: Sequence[Parameter], source: str) -> None:
    """Raises ConfigError when the configuration takes a value in no combination that is tried here.

    base: what the configuration sets. A value is tried alone, and beside the first and the last values of the other
    parameters. source: the name of the configuration.
    """
    seen: set[str] = set()
    for parameter in parameters:
        if parameter.path in seen:
            raise ConfigError(f"{parameter.path}: stands there twice; give it once", field=parameter.path)
        seen.add(parameter.path)
    ends = [{each.path: each.examples()[place] for each in parameters} for place in (0, -1)]
    for parameter in parameters:
        for value in parameter.examples():
            _check_value(base, parameter.path, value, ends, source)


def metrics_of(config: TrainConfig) -> list[str]:
    """Returns the metrics that the evaluations of a model give, as comparisons name them."""
    tasks = config.targets.tasks
    return [name if len(tasks) == 1 else f"{task.name}/{name}" for task in tasks for name in task.measured]


def content_of(base: Content, values: Mapping[str, Value]) -> dict[str, Any]:
    """Returns the configuration with values by dotted path."""
    content: Any = base
    for path, value in values.items():
        content = with_value(content, path, value)
    return dict(content)


def present_values(config: TrainConfig, parameters: Sequence[Parameter]) -> dict[str, Value] | None:
    """Returns the values that the configuration has itself; None when one of them lies outside of the sweep."""
    whole = config.model_dump(mode="json")
    found: dict[str, Value] = {}
    for parameter in parameters:
        values = values_at(whole, parameter.path)
        if not values or any(value != values[0] for value in values) or not parameter.holds(values[0]):
            return None
        found[parameter.path] = values[0]
    return found


def grid_points(parameters: Sequence[Parameter]) -> int:
    """Returns how many combinations a grid has. Raises ConfigError for a range without steps."""
    return math.prod(len(parameter.grid()) for parameter in parameters)


def _check_value(base: Content, path: str, value: Value, ends: Sequence[Mapping[str, Value]], source: str) -> None:
    errors: list[ConfigError] = []
    for others in ({}, *ends):
        content = content_of(base, {**others, path: value})
        try:
            parse_config(TrainConfig, content, source=f"{source} with {path} = {_shown(value)}")
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _shown(value: Value) -> str:
    return Choices("", (value,)).text()
