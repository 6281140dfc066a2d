"""Finds the places of a raw request where an id can be put so that it leaves the features unchanged.

A feature without hashes, crosses or vocabularies passes its integers on. Ids of other features can only be reached by
rows that hold the raw values they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from storage.features import FeatureSpec, InputSpec
from storage.features.dtypes import INTEGERS, integer_range
from storage.features.transforms import Pad, Select, Slice, Truncate

# More ids in a bag would drown one wrong row in a mean.
_BAG = 8


@dataclass(frozen=True)
class PassthroughInput:
    """A place of one input that can carry ids."""

    table: str
    input: InputSpec
    #: Position in a fixed input; -1 for a bag.
    position: int
    #: Number of ids that the place takes at once.
    ids: int

    def put(self, row: dict[str, Any], ids: Sequence[int]) -> None:
        """Writes ids, at most `self.ids`, into a row of raw values, in place; those it cannot send are left out."""
        low, high = integer_range(self.input.dtype)
        # UINT64 travels as two's complement.
        values = [value % 2**64 if self.input.dtype == "UINT64" else value for value in ids]
        values = [value for value in values if low <= value <= high]
        if not values:
            return
        if self.position < 0:
            row[self.input.name] = values
        elif self.input.width == 1:
            row[self.input.name] = values[0]
        else:
            given = row[self.input.name]
            cells = list(given) if isinstance(given, list) else [values[0]] * self.input.width
            cells[self.position] = values[0]
            row[self.input.name] = cells


def passthrough_inputs(spec: FeatureSpec, inputs: Sequence[InputSpec]) -> dict[str, list[PassthroughInput]]:
    """Returns table -> its pass-through inputs; each place of an input appears once, for the first table that reads it.

    inputs: those of the spec, with the dtypes in which they are sent.
    """
    by_name = {entry.name: entry for entry in inputs}
    shared = {name for feature in spec.features if len(feature.inputs) > 1 for name in feature.inputs}
    taken: set[tuple[str, int]] = set()
    found: dict[str, list[PassthroughInput]] = {}
    for feature in spec.ids_features:
        entry = by_name[feature.inputs[0]]
        passes = all(isinstance(step, Select | Slice | Truncate | Pad) for step in feature.transforms)
        if not passes or len(feature.inputs) > 1 or entry.dtype not in INTEGERS:
            continue
        length = feature.length or _BAG
        if entry.kind == "list":
            # A longer list could have more combinations than a cross allows.
            length = min(length, _BAG, entry.max_length) if entry.name not in shared else 1
            positions = [-1]
        else:
            positions = list(range(entry.width))
        for step in feature.transforms:
            if isinstance(step, Select):
                positions = [positions[step.index]]
            elif isinstance(step, Slice):
                positions = positions[step.start : step.stop]
            elif isinstance(step, Truncate):
                length = min(length, step.length)
                cut = slice(step.length) if step.keep == "first" else slice(-step.length, None)
                positions = positions if entry.kind == "list" else positions[cut]
        if feature.length:
            positions = positions[: feature.length]
        for position in positions:
            if (entry.name, position) not in taken:
                taken.add((entry.name, position))
                found.setdefault(feature.table, []).append(
                    PassthroughInput(feature.table, entry, position, length if position < 0 else 1)
                )
    return found
