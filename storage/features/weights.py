"""Inputs that hold a weight for each id of another input: which may, and raw rows made to match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.features.strict_model import did_you_mean
from storage.features.transforms import Cross, Pad

if TYPE_CHECKING:
    from storage.features.spec import Feature, FeatureSpec, InputSpec


def check_weights(spec: FeatureSpec) -> None:
    """Raises ValueError, naming the feature, unless every weights input goes with exactly one input of ids."""
    names = {entry.name for entry in spec.inputs}
    weighs: dict[str, str] = {}
    for feature in spec.features:
        if not feature.weights:
            continue
        where = f"feature {feature.name!r}"
        if feature.weights not in names:
            raise ValueError(
                f"{where}: unknown weights input {feature.weights!r}{did_you_mean(feature.weights, names)}"
            )
        ids, weights = spec.input(feature.inputs[0]), spec.input(feature.weights)
        _check_pair(where, feature, ids, weights)
        if weighs.setdefault(weights.name, ids.name) != ids.name:
            raise ValueError(
                f"{where}: the input {weights.name!r} holds the weights of {weighs[weights.name]!r} already; an input "
                "of weights goes with one input of ids"
            )


def matched_weights(spec: FeatureSpec, row: dict[str, Any]) -> dict[str, Any]:
    """A raw row whose weights fit its ids: one number for each, cut or filled with 1.

    row: a value, a list or None by input. The row itself where it fits already.
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
            continue  # what is null has a weight
        else:
            cells = given if isinstance(given, list | tuple) else [given] * entry.width
            fitting = [_number(value) for value in cells] if entry.width > 1 else _number(cells[0])
            same = fitting == given
        if not same:
            changes[weights] = fitting
    return {**row, **changes} if changes else row


def _resolved(entry: InputSpec, row: Any) -> list[Any]:
    """The values of a list as the engine takes them."""
    if row is None or (len(row) == 0 and entry.empty_is_null):
        return list(entry.default) if isinstance(entry.default, tuple) else []
    return list(row)


def _number(value: Any) -> Any:
    return 1.0 if value is None or value != value else value


def _check_pair(where: str, feature: Feature, ids: InputSpec, weights: InputSpec) -> None:
    if weights.dtype != "FP32":
        raise ValueError(f"{where}: the weights input {weights.name!r} is {weights.dtype}; weights are FP32")
    if len(feature.inputs) > 1 or any(isinstance(op, Cross | Pad) for op in feature.transforms):
        raise ValueError(f"{where}: cross and pad make ids that have no weight; a weighted feature cannot use them")
    if weights.kind != ids.kind or weights.width != ids.width or weights.max_length != ids.max_length:
        raise ValueError(
            f"{where}: the weights input {weights.name!r} must have the kind, width and max_length of {ids.name!r}, "
            "whose values it weighs"
        )
    if isinstance(weights.default, tuple):
        raise ValueError(f"{where}: a list of weights follows its list of ids, so {weights.name!r} has no default")
