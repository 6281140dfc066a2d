"""Asks both sides requests in which one feature alone varies, to find the feature that a difference comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emberline.proving.batches import Batch
from emberline.proving.comparison import Comparison
from emberline.proving.transports import ServerFault
from storage.errors import InvalidInput
from storage.features import Feature, FeatureSpec
from storage.features.transforms import Select, Slice

# Compares both sides on a batch of raw inputs.
Ask = Callable[[Batch], Comparison]
_VALUES = 24


@dataclass(frozen=True)
class Place:
    """Says where a feature's values lie in a request."""

    feature: str
    input: str
    #: Columns start to stop of the input; None for all.
    columns: tuple[int, int] | None = None

    def values(self, batch: Batch) -> np.ndarray:
        """Returns the values of a batch."""
        values = batch[self.input]
        return values if self.columns is None or values.ndim < 2 else values[:, slice(*self.columns)]

    def put(self, batch: Batch, values: np.ndarray) -> Batch:
        """Returns the batch with other values in this place."""
        copy = batch[self.input].copy()
        if self.columns is None or copy.ndim < 2:
            copy = values.copy()
        else:
            copy[:, slice(*self.columns)] = values
        return {**batch, self.input: copy}


def places(spec: FeatureSpec) -> list[Place]:
    """Returns the place of each feature; each column of a dense input of a few is one of its own."""
    found: list[Place] = []
    for feature in spec.features:
        columns = _columns(feature)
        width = spec.input(feature.inputs[0]).width
        if feature.output == "dense" and columns is None and 1 < width <= 64:
            found += [Place(f"{feature.name}[{k}]", feature.inputs[0], (k, k + 1)) for k in range(width)]
        else:
            found.append(Place(feature.name, feature.inputs[0], columns))
    return found


def _columns(feature: Feature) -> tuple[int, int] | None:
    first = feature.transforms[0] if feature.transforms else None
    if isinstance(first, Select):
        return first.index, first.index + 1
    if isinstance(first, Slice) and first.stop is not None:
        return first.start, first.stop
    return None


@dataclass(frozen=True)
class Attribution:
    """Says how much the difference of the two sides follows one feature."""

    feature: str
    #: Requests that differ from a base alone in this feature, and how many of them have another difference than it.
    asked: int
    differ: int
    #: The largest change of the difference.
    spread: float
    #: Whether the base itself is equal on both sides, so that the feature alone is at fault.
    is_certain: bool


def row(batch: Batch, number: int) -> Batch:
    """Returns one row of a batch."""
    return {name: values[number : number + 1] for name, values in batch.items()}


def repeated(base: Batch, count: int) -> Batch:
    """Returns a row several times."""
    return {name: np.repeat(values, count, axis=0) for name, values in base.items()}


def attribute(batch: Batch, seen: Comparison, known: list[Place], ask: Ask) -> list[Attribution]:
    """Varies one feature after the other over the values of the batch, around a row that is equal where there is one.

    Returns those whose values change the difference, the most important first. Features that the old server refuses
    other values for are left out.
    """
    equal, different = np.flatnonzero(~seen.differs), np.flatnonzero(seen.differs)
    base_row = int(equal[0]) if len(equal) else int(different[np.argmin(seen.apart[different])])
    base = row(batch, base_row)
    found: list[Attribution] = []
    for place in known:
        values = place.values(batch)[different[:_VALUES]]
        asked = place.put(repeated(base, len(values)), values)
        try:
            apart = ask(asked).apart
        except (InvalidInput, ServerFault):
            continue
        change = np.abs(apart - seen.apart[base_row])
        spread = float(change.max(initial=0.0))
        if spread > seen.tolerance:
            count = int((change > seen.tolerance).sum())
            found.append(Attribution(place.feature, len(values), count, spread, bool(len(equal))))
    return sorted(found, key=lambda each: -each.spread)


def shrunk(request: Batch, known: list[Place], ask: Ask) -> Batch:
    """Returns a request with zeros in place of every feature that is not needed for the difference to show."""
    for place in known:
        values = place.values(request)
        if values.dtype.kind not in "iufb" or not values.any():
            continue
        simpler = place.put(request, np.zeros_like(values))
        try:
            if ask(simpler).count:
                request = simpler
        except (InvalidInput, ServerFault):
            continue
    return request
