"""One lookup of several layers in one native call, and the way back of its gradients.

B bags, N ids of a layer, D dim, L length, W the dims of all pooled layers together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage._table import BatchLookup
from storage.errors import InvalidInput
from storage.initializers import AbsentRows
from storage.specs import POOLINGS
from trainer.embedding.table import EmbeddingTable, Ids

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class LayerLookup:
    """Says how a layer looks up a table. pooling: one of POOLINGS. length: of pooling none, the ids used of a bag.

    absent: what ids without a row read as; None: what the table says.
    """

    table: EmbeddingTable
    pooling: str
    length: int = 0
    absent: AbsentRows | None = None


@dataclass(frozen=True)
class LayerIds:
    """The ids of a layer: values (N,), offsets (B + 1,), with pooling weighted weights (N,)."""

    values: Ids
    offsets: Ids
    weights: Weights | None = None


class Lookups:
    """Looks up several layers at once: their tables read an id once a batch, on all threads that torch uses."""

    def __init__(self, layers: Sequence[LayerLookup]) -> None:
        self._layers = tuple(layers)
        self._tables = list(dict.fromkeys(layer.table for layer in layers))
        self._native = [table.native for table in self._tables]
        places = {table: place for place, table in enumerate(self._tables)}
        self._features = [(places[layer.table], POOLINGS.index(layer.pooling), layer.length) for layer in layers]
        self._absent = [None if layer.absent is None else _native(layer.absent) for layer in layers]
        self._width = sum(layer.table.dim for layer in layers if layer.pooling != "none")
        self._sequences = [(layer.length, layer.table.dim) for layer in layers if layer.pooling == "none"]
        # autograd calls backward only for functions with an input that wants a gradient; no dense input of a lookup
        # does.
        self._anchor = torch.zeros((), requires_grad=True)

    def __call__(self, ids: Sequence[LayerIds], *, train: bool) -> tuple[Tensor, list[Tensor]]:
        """Returns the pooled layers side by side, (B, W) float32, and the rows (B, L, D) of each with pooling none.

        ids: those of each layer. train: counts the ids and creates the rows that are due.
        """
        pooled, *sequences = _Lookup.apply(self._anchor, self, ids, train)  # type: ignore[no-untyped-call]
        return pooled, sequences

    def run(self, ids: Sequence[LayerIds], train: bool) -> tuple[BatchLookup, list[Tensor]]:
        """Looks up without autograd; returns the native lookup, and the results as `__call__` does."""
        batch = len(ids[0].offsets) - 1
        for each in ids:
            if len(each.offsets) - 1 != batch:
                raise InvalidInput(
                    f"offsets: one feature has {batch} bags and another {len(each.offsets) - 1}", field="offsets"
                )
        results = [torch.empty((batch, self._width)), *(torch.empty((batch, *shape)) for shape in self._sequences)]
        arrays = [result.numpy() for result in results]
        native = BatchLookup(self._native, self._features, self._absent)
        native.run(
            [each.values for each in ids],
            [each.offsets for each in ids],
            [each.weights for each in ids],
            batch,
            arrays[0],
            arrays[1:],
            train,
            torch.get_num_threads(),
        )
        return native, results

    def keep_gradients(self, native: BatchLookup, gradients: Sequence[Tensor | None]) -> None:
        """Gives the tables the gradients of what `run` returned; None: there are none."""
        pooled, *sequences = (
            None if each is None else each.detach().to(torch.float32).contiguous().numpy() for each in gradients
        )
        native.set_gradients(pooled, sequences, torch.get_num_threads())
        for place, table in enumerate(self._tables):
            table.keep_gradients(native.gradients(place))


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, lookups: Lookups, ids: Sequence[LayerIds], train: bool) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        native, results = lookups.run(ids, train)
        ctx.lookups, ctx.native, ctx.ids = lookups, native, ids
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        native, ctx.native = ctx.native, None
        if native is None:  # backward ran before, and the tables may still hold what it left in the lookup
            native, _ = ctx.lookups.run(ctx.ids, False)
        ctx.lookups.keep_gradients(native, gradients)
        return None, None, None, None


def _native(absent: AbsentRows) -> tuple[str, float, int]:
    return (*absent.initializer.native(), absent.seed)
