"""Looks up features into memory that a session uses for every batch, in the layout that the dense graph takes.

An output belongs to the session until its next batch: nothing that leaves the session may lie in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from storage.checkpoint import GraphInput
from storage.errors import CheckpointError
from storage.features import FeatureBatch, FeatureSpec
from storage.features.dtypes import NUMPY_DTYPES
from storage.tiers.lookup_plan import LookupArrays
from storage.tiers.tiered import LookupResult, TieredStore

# Batch sizes whose arrays are remembered.
_SIZES = 64
# Floats of a line of the cache.
_LINE = 16

# Kinds of inputs that come from a lookup; the others are features as they are.
_LOOKED_UP = frozenset({"pooled", "rows", "lengths", "mask"})

# Takes an input of the graph out of features and the result of their lookup.
_Pick = Callable[[FeatureBatch, LookupResult], np.ndarray]


@dataclass(frozen=True)
class MadeInput:
    """An input of the graph that is made of features."""

    #: Its number.
    place: int
    #: Numbers of the published graph's inputs that lie in it, behind each other in a row.
    members: tuple[int, ...]
    #: Its shape without the batch.
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Block:
    """Rows of features behind each other, and the inputs of the graph that they are."""

    features: tuple[int, ...]
    shape: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class _Arrays:
    """Arrays for batches of one size, all in the session's memory."""

    into: LookupArrays
    #: Tensors over them, by place of the graph's input.
    tensors: tuple[tuple[int, torch.Tensor], ...]


class FeatureLookup:
    """Looks up some features, and takes inputs of the graph out of the result.

    Not thread-safe: it owns the memory that lookups write to, which grows to the largest batch.
    """

    def __init__(
        self, spec: FeatureSpec, store: TieredStore, inputs: Sequence[GraphInput], made: Sequence[MadeInput]
    ) -> None:
        """inputs: those of the published graph."""
        entries = [inputs[number] for each in made for number in each.members]
        # Features that the graph does not read are not looked up.
        sources = dict.fromkeys(entry.source for entry in entries if entry.kind in _LOOKED_UP)
        #: The features that are looked up, in the plan's order.
        self.features = self._features = list(sources)
        self._plan = store.plan([spec.lookup(name) for name in self._features])
        blocks = {each: [inputs[number] for number in each.members] for each in made}
        direct = {each for each, parts in blocks.items() if all(map(_is_direct, parts))}
        self._picks = [(each.place, self._pick(blocks[each][0])) for each in made if each not in direct]
        self._blocks = self._lay_out({each: blocks[each] for each in made if each in direct})
        self._memory = np.empty(0, np.float32)
        self._arrays: dict[int, _Arrays] = {}

    def run(self, batch: FeatureBatch, timeout_s: float | None, mask: int, tensors: list[torch.Tensor]) -> LookupResult:
        """Looks up the ids of the features, and puts the graph's inputs into their places of `tensors`.

        They hold until the next run. Raises StoreError.
        """
        rows = batch.batch
        arrays = self._arrays.get(rows) or self._make(rows)
        ids = batch.ids
        found = self._plan.lookup(rows, [ids[name] for name in self._features], timeout_s, mask, arrays.into)
        for place, tensor in arrays.tensors:
            tensors[place] = tensor
        for place, pick in self._picks:
            tensors[place] = torch.from_numpy(pick(batch, found))
        return found

    def owns(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor lies in the memory that the next run writes to."""
        start = self._memory.ctypes.data
        return start <= tensor.data_ptr() < start + self._memory.nbytes

    def _lay_out(self, direct: Mapping[MadeInput, Sequence[GraphInput]]) -> list[_Block]:
        """Returns the blocks of all features; inputs of the same feature share one."""
        found: dict[tuple[int, ...], _Block] = {}
        for made, parts in direct.items():
            numbers = tuple(self._features.index(part.source) for part in parts)
            places = found[numbers].places if numbers in found else ()
            found[numbers] = _Block(numbers, made.shape, (*places, made.place))
        laid = {number for numbers in found for number in numbers}
        alone = [number for number in range(len(self._features)) if number not in laid]
        return [*found.values(), *(_Block((number,), self._plan.shapes[number], ()) for number in alone)]

    def _make(self, rows: int) -> _Arrays:
        """Makes the arrays for batches of this size."""
        floats = rows * sum(math.prod(block.shape) for block in self._blocks)
        if floats > len(self._memory):
            self._memory = _aligned(floats)
            self._arrays.clear()
        elif len(self._arrays) >= _SIZES:
            self._arrays.clear()
        outputs: dict[int, np.ndarray] = {}
        tensors: list[tuple[int, torch.Tensor]] = []
        start = 0
        for block in self._blocks:
            width = math.prod(block.shape)
            values = self._memory[start : start + rows * width].reshape(rows, width)
            start += rows * width
            column = 0
            for number in block.features:
                shape = self._plan.shapes[number]
                own = values[:, column : column + math.prod(shape)]
                outputs[number] = own.reshape(rows, *shape) if len(shape) > 1 else own
                column += math.prod(shape)
            if block.places:
                tensor = torch.from_numpy(values.reshape(rows, *block.shape))
                tensors += [(place, tensor) for place in block.places]
        into = self._plan.arrays(rows, [outputs[number] for number in range(len(self._features))])
        self._arrays[rows] = made = _Arrays(into, tuple(tensors))
        return made

    def _pick(self, entry: GraphInput) -> _Pick:
        """Returns a function that takes one input of the graph out of features and lookup, in the graph's dtype."""
        dtype = NUMPY_DTYPES[entry.dtype]
        if entry.kind == "dense":
            source = entry.source
            return lambda features, found: features.dense[source].astype(dtype, copy=False)
        if entry.kind == "ids":
            source = entry.source
            return lambda features, found: features.integers(source)
        index = self._features.index(entry.source)
        part = {"pooled": "outputs", "rows": "outputs", "lengths": "lengths", "mask": "masks"}[entry.kind]

        def pick(features: FeatureBatch, found: LookupResult) -> np.ndarray:
            value = getattr(found, part)[index]
            if value is None:
                raise CheckpointError(f"graph input {entry.name!r}: the feature {entry.source!r} is pooled")
            return np.asarray(value).astype(dtype, copy=False)

        return pick


def _is_direct(entry: GraphInput) -> bool:
    """Returns whether a lookup writes an input itself."""
    return entry.kind in ("pooled", "rows") and entry.dtype == "FP32"


def _aligned(floats: int) -> np.ndarray:
    """Returns memory that starts with a line of the cache: a row of 64 bytes is then written to one line, not two."""
    memory = np.empty(floats + _LINE, np.float32)
    start = -(memory.ctypes.data // memory.itemsize) % _LINE
    return memory[start : start + floats]
