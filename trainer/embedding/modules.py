"""Embedding layers as ordinary torch modules. `train()` and `eval()` decide whether a lookup may change the table.

Tables are in host memory, and ids are given there. `to(device)` decides where the results of a layer are.

B bags, N ids, D dim, L length of a padded sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import ConfigError, InvalidInput
from storage.initializers import AbsentRows
from storage.specs import MAX_LENGTH
from trainer.embedding.layers import Chain, LayerIds, LayerLookup
from trainer.embedding.lookups import Lookups
from trainer.embedding.table import EmbeddingTable, Ids

# Values (N,) int64 and offsets (B + 1,) int64 of each level.
LevelIds = Sequence[tuple[Tensor, Tensor]]


class EmbeddingBag(nn.Module):
    """Sum or mean of the rows of each bag, or with mode "weighted" their sum times a weight for each id.

    forward(values (N,) int64, offsets (B + 1,) int64) -> (B, D) float32; an id without a row adds its absent row (zeros
    by default), an empty bag is zero, and a mean divides by the number of ids given. Mode weighted takes a third
    argument, weights (N,) float32; they are data: gradients go to the rows alone. absent: the absent rows of this
    layer; None: those of the table. chain: rows that ids without one read first; forward then takes `levels`, the
    values and offsets of each level of the chain. Several layers may share a table.
    """

    place: Tensor

    def __init__(
        self,
        table: EmbeddingTable,
        mode: Literal["sum", "mean", "weighted"] = "sum",
        *,
        absent: AbsentRows | None = None,
        chain: Chain | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean", "weighted"):
            raise ConfigError(f"table {table.name!r}: mode is {mode!r}, expected sum, mean or weighted", field="mode")
        self.table = table
        self.mode = mode
        self.absent = absent
        self.chain = chain
        self._lookups = Lookups(self.lookup().with_levels())
        # `to(device)` moves it with the module, which says where results are wanted.
        self.register_buffer("place", torch.empty(0), persistent=False)

    def lookup(self) -> LayerLookup:
        """Returns how it looks up its table."""
        return LayerLookup(self.table, self.mode, absent=self.absent, chain=self.chain)

    def checked(self, values: Tensor, offsets: Tensor, weights: Tensor | None) -> LayerIds:
        """Returns the arguments of `forward` as arrays. Raises InvalidInput for what is no such argument."""
        ids, bags = _checked(values, offsets)
        ids = self.table.row_ids(ids)
        if self.mode == "weighted":
            return LayerIds(ids, bags, _checked_weights(weights, len(ids), self.table.name))
        if weights is not None:
            raise InvalidInput(
                f"table {self.table.name!r}: weights are for mode weighted, not {self.mode}", field="weights"
            )
        return LayerIds(ids, bags)

    def forward(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None = None, *, levels: LevelIds = ()
    ) -> Tensor:
        ids = [self.checked(values, offsets, weights), *_checked_levels(self.table, self.chain, levels)]
        return self._lookups(ids, train=self.training, device=self.place.device)[0]

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}, mode={self.mode!r}"


class Embedding(nn.Module):
    """The rows of each bag side by side, padded with zeros or cut to `length`: for models that attend over a sequence.

    forward(values (N,) int64, offsets (B + 1,) int64) -> rows (B, L, D) float32 and lengths (B,) int64, the number of
    ids used of each bag. The first `length` ids of a bag are used; the rest are neither read nor counted. An id without
    a row reads as its absent row. absent, chain: as for EmbeddingBag.
    """

    place: Tensor

    def __init__(
        self, table: EmbeddingTable, length: int, *, absent: AbsentRows | None = None, chain: Chain | None = None
    ) -> None:
        super().__init__()
        if not 1 <= length <= MAX_LENGTH:
            raise ConfigError(
                f"table {table.name!r}: length is {length}, expected 1 to {MAX_LENGTH}", field=f"tables.{table.name}"
            )
        self.table = table
        self.length = length
        self.absent = absent
        self.chain = chain
        self._lookups = Lookups(self.lookup().with_levels())
        # `to(device)` moves it with the module, which says where results are wanted.
        self.register_buffer("place", torch.empty(0), persistent=False)

    def lookup(self) -> LayerLookup:
        """Returns how it looks up its table."""
        return LayerLookup(self.table, "none", self.length, self.absent, self.chain)

    def checked(self, values: Tensor, offsets: Tensor) -> LayerIds:
        """Returns the arguments of `forward` as arrays. Raises InvalidInput for what is no such argument."""
        ids, bags = _checked(values, offsets)
        return LayerIds(self.table.row_ids(ids), bags)

    def lengths(self, ids: LayerIds) -> Tensor:
        """Returns how many ids are used of each bag, (B,) int64."""
        return torch.from_numpy(np.minimum(np.diff(ids.offsets), self.length)).to(self.place.device, non_blocking=True)

    def forward(self, values: Tensor, offsets: Tensor, *, levels: LevelIds = ()) -> tuple[Tensor, Tensor]:
        ids = self.checked(values, offsets)
        given = [ids, *_checked_levels(self.table, self.chain, levels)]
        _, rows = self._lookups(given, train=self.training, device=self.place.device)
        return rows[0], self.lengths(ids)

    def extra_repr(self) -> str:
        return f"{self.table.name!r}, dim={self.table.dim}, length={self.length}"


def _checked_levels(table: EmbeddingTable, chain: Chain | None, levels: LevelIds) -> list[LayerIds]:
    wanted = () if chain is None else chain.levels
    if len(levels) != len(wanted):
        raise InvalidInput(
            f"table {table.name!r}: levels: expected values and offsets for each of {len(wanted)} levels of the chain, "
            f"got {len(levels)}",
            field="levels",
        )
    found = []
    for level, (values, offsets) in zip(wanted, levels, strict=True):
        ids, bags = _checked(values, offsets)
        found.append(LayerIds(level.table.row_ids(ids), bags))
    return found


def _checked_weights(weights: Tensor | None, count: int, table: str) -> np.ndarray:
    if weights is None:
        raise InvalidInput(f"table {table!r}: mode weighted needs weights, one for each id", field="weights")
    if weights.dtype != torch.float32 or weights.dim() != 1 or len(weights) != count:
        raise InvalidInput(
            f"weights: expected float32 [{count}], one for each id, got {weights.dtype} {list(weights.shape)}",
            field="weights",
        )
    each = _on_host(weights.detach()).numpy()
    if not np.isfinite(each).all():
        raise InvalidInput("weights: hold NaN or infinity", field="weights")
    return each


def _checked(values: Tensor, offsets: Tensor) -> tuple[Ids, Ids]:
    for name, tensor in (("values", values), ("offsets", offsets)):
        if tensor.dtype != torch.int64 or tensor.dim() != 1:
            raise InvalidInput(
                f"{name}: expected int64 of one dimension, got {tensor.dtype} {list(tensor.shape)}", field=name
            )
    ids, bags = _on_host(values).numpy(), _on_host(offsets).numpy()
    if len(bags) == 0 or bags[0] != 0 or bags[-1] != len(ids):
        raise InvalidInput(
            f"offsets: expected one more than there are bags, from 0 to {len(ids)}, the number of values",
            field="offsets",
        )
    return ids, bags


def _on_host(tensor: Tensor) -> Tensor:
    return (tensor if tensor.device.type == "cpu" else tensor.cpu()).contiguous()
