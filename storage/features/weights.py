"""Makes the weights of raw rows match the ids that they weigh."""

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


def _resolved(entry: InputSpec, row: Any) -> list[Any]:
    """Returns the values of a list as the engine takes them."""
    if row is None or (len(row) == 0 and entry.empty_is_null):
        return list(entry.default) if isinstance(entry.default, tuple) else []
    return list(row)


def _number(value: Any) -> Any:
    return 1.0 if value is None or value != value else value
