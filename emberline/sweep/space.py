"""The values that a sweep tries: choices and ranges by dotted path of the configuration.

In a file, `parameters` maps paths to lists of choices or to mappings; on the command line stands PATH=VALUES:

    optimizer.sparse.lr: {log: [0.01, 1.0]}      optimizer.sparse.lr=log:0.01..1.0
    model.dropout: {range: [0.0, 0.5]}           model.dropout=0.0..0.5
    tables.*.dim: {integers: [8, 64], step: 8}   tables.*.dim=8..64/8
    model.top: [[64, 32], [128, 64]]             model.top=[64, 32],[128, 64]
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean

Value = Any
Sampler = Literal["tpe", "random", "grid"]
_KINDS = ("choices", "range", "log", "integers")
_RANGE = re.compile(r"(?P<log>log:)?(?P<low>[^,/\[\]]+)\.\.(?P<high>[^,/\[\]]+?)(/(?P<step>[^,/]+))?")
_GRID_AT_MOST = 10_000


@dataclass(frozen=True)
class Choices:
    """Some values, without an order."""

    path: str
    values: tuple[Value, ...]

    def examples(self) -> tuple[Value, ...]:
        """Returns the values that show whether the configuration takes all of them."""
        return self.values

    def grid(self) -> tuple[Value, ...]:
        """Returns all values."""
        return self.values

    def holds(self, value: Value) -> bool:
        """Returns whether the value is one of them."""
        return value in self.values

    def text(self) -> str:
        """Returns the parameter as it is written on the command line."""
        return ",".join(json.dumps(value) for value in self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included: whole ones, or any; evenly, or by their logarithm."""

    path: str
    low: float
    high: float
    whole: bool = False
    log: bool = False
    step: float | None = None

    def examples(self) -> tuple[Value, ...]:
        """Returns the ends, and for numbers that need not be whole one between them."""
        if self.whole:
            return (self.low, self.high)
        between = self.low + (self.step or 0.381966 * (self.high - self.low))
        return (self.low, between, self.high)

    def grid(self) -> tuple[Value, ...]:
        """Returns all values. Raises ConfigError for a range without steps."""
        step = self.step or (1 if self.whole and not self.log else None)
        if step is None:
            raise ConfigError(
                f"{self.path}: a grid needs choices, or a range with a step such as {self.low:g}..{self.high:g}/STEP",
                field=self.path,
            )
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return tuple(self.low + place * step for place in range(min(count, _GRID_AT_MOST + 1)))

    def holds(self, value: Value) -> bool:
        """Returns whether the value lies in it, and on a step."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high or (self.whole and value != int(value)):
            return False
        steps = (value - self.low) / (self.step or 1.0)
        return self.step is None or abs(steps - round(steps)) < 1e-9

    def text(self) -> str:
        """Returns the parameter as it is written on the command line."""
        step = "" if self.step is None else f"/{self.step:g}"
        return f"{'log:' if self.log else ''}{self.low:g}..{self.high:g}{step}"


Parameter = Choices | Range


def from_mapping(content: object, source: str) -> tuple[Parameter, ...]:
    """Reads `parameters` of a sweep file. Raises ConfigError naming the path and what was expected."""
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{source}: parameters: expected a mapping of dotted paths to values", field="parameters")
    found: list[Parameter] = []
    for path, given in content.items():
        where = f"{source}: parameters.{path}"
        if isinstance(given, list):
            found.append(_choices(str(path), given, where))
            continue
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"{where}: expected a list of choices, or one of {', '.join(_KINDS)}, got {given!r}", field=str(path)
            )
        found.append(_from_kind(str(path), given, where))
    return tuple(found)


def from_text(text: str) -> Parameter:
    """Reads PATH=VALUES. Raises ConfigError naming the path and what was expected."""
    path, equals, values = text.partition("=")
    path, values = path.strip(), values.strip()
    if not (path and equals and values):
        raise ConfigError(
            f"--set {text}: expected PATH=VALUES, such as optimizer.sparse.lr=log:0.01..1.0 or model.dropout=0.0,0.2",
            field="--set",
        )
    where = f"--set {text}"
    found = _RANGE.fullmatch(values)
    if found is None:
        return _choices(path, _yaml(f"[{values}]", where, path), where)
    ends = [_yaml(found[name], where, path) for name in ("low", "high")]
    step = None if found["step"] is None else _yaml(found["step"], where, path)
    whole = all(isinstance(each, int) for each in (*ends, *([] if step is None else [step])))
    return _range(path, ends, where, whole=whole, log=found["log"] is not None, step=step)


def _from_kind(path: str, given: Mapping[Any, Any], where: str) -> Parameter:
    for key in given:
        if key not in (*_KINDS, "step"):
            raise ConfigError(f"{where}: unknown key {key!r}{did_you_mean(str(key), (*_KINDS, 'step'))}", field=path)
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise ConfigError(f"{where}: expected one of {', '.join(_KINDS)}, got {', '.join(kinds) or 'none'}", field=path)
    kind, step = kinds[0], given.get("step")
    values = given[kind]
    if not isinstance(values, list):
        raise ConfigError(f"{where}.{kind}: expected a list, got {values!r}", field=path)
    if kind == "choices":
        return _choices(path, values, where)
    whole = kind == "integers" or (kind == "log" and all(isinstance(value, int) for value in values))
    return _range(path, values, where, whole=whole, log=kind == "log", step=step)


def _choices(path: str, values: Sequence[Value], where: str) -> Choices:
    if not values:
        raise ConfigError(f"{where}: expected at least one value", field=path)
    if len({json.dumps(value) for value in values}) != len(values):
        raise ConfigError(f"{where}: a value stands there twice", field=path)
    return Choices(path, tuple(values))


def _range(path: str, ends: Sequence[Value], where: str, *, whole: bool, log: bool, step: Value) -> Range:
    numbers = [*ends, *([] if step is None else [step])]
    wanted = "whole numbers" if whole else "numbers"
    kinds = int if whole else (int, float)
    if len(ends) != 2 or not all(isinstance(each, kinds) and not isinstance(each, bool) for each in numbers):
        raise ConfigError(f"{where}: expected two {wanted}, the least and the largest", field=path)
    low, high = ends
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"{where}: expected the smaller number first, got {low} and {high}", field=path)
    if log and low <= 0:
        raise ConfigError(f"{where}: a logarithmic range begins above 0, not with {low}", field=path)
    if step is not None and (log or step <= 0):
        raise ConfigError(
            f"{where}: {'a logarithmic range has no step' if log else 'a step is above 0'}, got {step}", field=path
        )
    if whole:
        return Range(path, low, high, whole=True, log=log, step=step)
    return Range(path, float(low), float(high), log=log, step=None if step is None else float(step))


def _with_numbers(value: Any) -> Any:
    # YAML 1.1 reads 1e-3 as text.
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", value) else value


def _yaml(text: str, where: str, path: str) -> Any:
    try:
        return _with_numbers(yaml.safe_load(text))
    except yaml.YAMLError:
        raise ConfigError(f"{where}: {text!r} is not YAML", field=path) from None
