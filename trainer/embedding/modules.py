"""Embedding layers as ordinary torch modules. `train()` and `eval()` decide whether a lookup may change the table.

B bags, N ids, D dim, L length of a padded sequence.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from storage._table import TrainingTable
from storage.errors import ConfigError, InvalidInput
from storage.specs import MAX_LENGTH, POOLINGS
from trainer.embedding.table import EmbeddingTable, Ids

Weights = NDArray[np.float32]


class EmbeddingBag(nn.Module):
    """Sum or mean of the rows of each bag, or with mode "weighted" their sum times a weight for each id.

    forward(values (N,) int64, offsets (B + 1,) int64) -> (B, D) float32; an id without a row adds zero, an empty bag is
    zero, and a mean divides by the number of ids given. Mode weighted takes a third argument, weights (N,) float32;
    they are data: gradients go to the rows alone. Several layers may share a table.
    """

    def __init__(self, table: EmbeddingTable, mode: Literal["sum", "mean", "weighted"] = "sum") -> None:
        super().__init__()
        if mode not in ("sum", "mean", "weighted"):
            raise ConfigError(f"table {table.name!r}: mode is {mode!r}, expected sum, mean or weighted", field="mode")
        self.table = table
        self.mode = mode
        self._anchor = _anchor()

    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        ids, bags = _checked(values, offsets)
        result: Tensor
        if self.mode == "weighted":
            each = _checked_weights(weights, len(ids), self.table.name)
            result = _PoolWeighted.apply(self._anchor, self, ids, bags, each)  # type: ignore[no-untyped-call]
        elif weights is not None:
            raise InvalidInput(
                f"table {self.table.name!r}: weights are for mode weighted, not {self.mode}", field="weights"
            )
        else:
            result = _Pool.apply(self._anchor, self, ids, bags)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}, mode={self.mode!r}"


class Embedding(nn.Module):
    """The rows of each bag side by side, padded with zeros or cut to `length`: for models that attend over a sequence.

    forward(values (N,) int64, offsets (B + 1,) int64) -> rows (B, L, D) float32 and lengths (B,) int64, the number of
    ids used of each bag. The first `length` ids of a bag are used; the rest are neither read nor counted.
    """

    def __init__(self, table: EmbeddingTable, length: int) -> None:
        super().__init__()
        if not 1 <= length <= MAX_LENGTH:
            raise ConfigError(
                f"table {table.name!r}: length is {length}, expected 1 to {MAX_LENGTH}", field=f"tables.{table.name}"
            )
        self.table = table
        self.length = length
        self._anchor = _anchor()

    def forward(self, values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        ids, bags = _checked(values, offsets)
        lengths = np.minimum(np.diff(bags), self.length)
        rows: Tensor = _Gather.apply(self._anchor, self, ids, bags, lengths)  # type: ignore[no-untyped-call]
        return rows, torch.from_numpy(lengths)

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}, length={self.length}"


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, layer: EmbeddingBag, ids: Ids, offsets: Ids) -> Tensor:
        ctx.layer, ctx.ids, ctx.offsets = layer, ids, offsets
        return torch.from_numpy(layer.table.pool(ids, offsets, layer.mode, train=layer.training))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        pooled = np.ascontiguousarray(gradients[0].numpy())
        rows = TrainingTable.pool_backward(ctx.offsets, POOLINGS.index(ctx.layer.mode), pooled)
        ctx.layer.table.add_gradients(ctx.ids, rows)
        return None, None, None, None


class _PoolWeighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, layer: EmbeddingBag, ids: Ids, offsets: Ids, weights: Weights) -> Tensor:
        ctx.layer, ctx.ids, ctx.offsets, ctx.weights = layer, ids, offsets, weights
        rows = layer.table.lookup(ids, train=layer.training)
        rows *= weights[:, None]
        pooled = np.zeros((len(offsets) - 1, layer.table.dim), np.float32)
        filled = np.flatnonzero(np.diff(offsets))
        if len(filled):
            pooled[filled] = np.add.reduceat(rows, offsets[filled], axis=0)
        return torch.from_numpy(pooled)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        rows = np.repeat(gradients[0].numpy(), np.diff(ctx.offsets), axis=0)
        rows *= ctx.weights[:, None]
        ctx.layer.table.add_gradients(ctx.ids, rows)
        return None, None, None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, layer: Embedding, ids: Ids, offsets: Ids, lengths: Ids) -> Tensor:
        bags = np.repeat(np.arange(len(lengths)), lengths)
        ends = np.cumsum(lengths)
        positions = np.arange(len(bags)) - np.repeat(ends - lengths, lengths)
        used = np.ascontiguousarray(ids[offsets[bags] + positions])
        padded = np.zeros((len(lengths), layer.length, layer.table.dim), dtype=np.float32)
        padded[bags, positions] = layer.table.lookup(used, train=layer.training)
        ctx.layer, ctx.ids, ctx.bags, ctx.positions = layer, used, bags, positions
        return torch.from_numpy(padded)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        rows = np.ascontiguousarray(gradients[0].numpy()[ctx.bags, ctx.positions])
        ctx.layer.table.add_gradients(ctx.ids, rows)
        return None, None, None, None, None


def _anchor() -> Tensor:
    # autograd calls backward only for functions with an input that wants a gradient; no dense input of a lookup does.
    return torch.zeros((), requires_grad=True)


def _checked_weights(weights: Tensor | None, count: int, table: str) -> Weights:
    if weights is None:
        raise InvalidInput(f"table {table!r}: mode weighted needs weights, one for each id", field="weights")
    if weights.dtype != torch.float32 or weights.dim() != 1 or len(weights) != count:
        raise InvalidInput(
            f"weights: expected float32 [{count}], one for each id, got {weights.dtype} {list(weights.shape)}",
            field="weights",
        )
    each = weights.detach().contiguous().numpy()
    if not np.isfinite(each).all():
        raise InvalidInput("weights: hold NaN or infinity", field="weights")
    return each


def _checked(values: Tensor, offsets: Tensor) -> tuple[Ids, Ids]:
    for name, tensor in (("values", values), ("offsets", offsets)):
        if tensor.dtype != torch.int64 or tensor.dim() != 1:
            raise InvalidInput(
                f"{name}: expected int64 of one dimension, got {tensor.dtype} {list(tensor.shape)}", field=name
            )
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(values):
        raise InvalidInput(
            f"offsets: expected one more than there are bags, from 0 to {len(values)}, the number of values",
            field="offsets",
        )
    return values.contiguous().numpy(), offsets.contiguous().numpy()
