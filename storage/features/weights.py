"""Makes the weights of raw rows, and lists that stand for the ids of another one, match these ids."""

from __future__ import annotations

from typing import Any

from storage.features.feature import InputSpec
from storage.features.spec import FeatureSpec


def matched_weights(spec: FeatureSpec, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a raw row whose weights fit its ids: one number for each, cut or filled with 1.

    row: a value, a list or None by input. It is returned itself when it fits already.
    """
    changes: dict[str, Any] = {}
    for weights, ids in spec.weights_of.items():
        entry, given = spec.input(weights), row[weights]
        if entry.kind == "list":
            count = len(_resolved(spec.input(ids), row[ids]))
            kept = [_number(value) for value in (given or ())[:count]]
            fitting: Any = kept + [1.0] * (count - len(kept))
            same = given is not None and fitting == given
        elif entry.default is not None:
            continue  # a null has the default as its weight
        else:
            cells = given if isinstance(given, list | tuple) else [given] * entry.width
            fitting = [_number(value) for value in cells] if entry.width > 1 else _number(cells[0])
            same = fitting == given
        if not same:
            changes[weights] = fitting
    return {**row, **changes} if changes else row


def matched_levels(spec: FeatureSpec, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a raw row whose lists of levels are as long as those whose ids they stand for, or empty.

    row: as for `matched_weights`.
    """
    changed = row
    for feature in spec.ids_features:
        for level in spec.parallel_levels(feature.name):
            ids, name = feature.inputs[0], spec.feature(level).inputs[0]
            count = _count(spec.input(ids), changed[ids])
            given = [value for value in _resolved(spec.input(name), changed[name]) if value is not None]
            if len(given) not in (0, count):
                changed = {**changed, name: (given * count)[:count]}
    return changed


def _count(entry: InputSpec, row: Any) -> int:
    return sum(value is not None for value in _resolved(entry, row))


def _resolved(entry: InputSpec, row: Any) -> list[Any]:
    """Returns the values of a list as the engine takes them."""
    if row is None or (len(row) == 0 and entry.empty_is_null):
        return list(entry.default) if isinstance(entry.default, tuple) else []
    return list(row)


def _number(value: Any) -> Any:
    return 1.0 if value is None or value != value else value
