"""Tables that are made of several, and layers over them. Each id has a row in every part, and the layers give one.

B bags, N ids, D dim, L length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from trainer.embedding.collection import EmbeddingCollection
from trainer.embedding.modules import Embedding, EmbeddingBag
from trainer.embedding.table import EmbeddingTable
from trainer.row_tables import Combination as CombinationName


class Combination(nn.Module):
    """Makes one row of the rows of several tables: forward([(..., D of a part)]) -> (..., D).

    add, mult: of parts of one dim. concat: side by side. residual: a wide row plus a narrow one that a weight without a
    bias projects. All but mult are linear: applied to sums of rows, they give what they give row by row.
    """

    def __init__(self, combination: CombinationName, dims: Sequence[int]) -> None:
        super().__init__()
        self.combination = combination
        self.project = nn.Linear(dims[1], dims[0], bias=False) if combination == "residual" else None

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        if self.combination == "concat":
            return torch.cat(list(parts), dim=-1)
        total, *rest = parts
        for part in rest:
            if self.project is not None:
                part = self.project(part)
            total = total * part if self.combination == "mult" else total + part
        return total

    def extra_repr(self) -> str:
        return self.combination


class CombinedTable:
    """A table made of several: give `parts` to the optimizer, and the whole to CombinedBag or CombinedEmbedding."""

    def __init__(self, name: str, dim: int, combination: CombinationName, parts: Sequence[EmbeddingTable]) -> None:
        self.name = name
        #: D of the rows that layers give.
        self.dim = dim
        self.combination = combination
        self.parts = tuple(parts)


class CombinedBag(nn.Module):
    """An EmbeddingBag over a table made of several: forward(values (N,), offsets (B + 1,)) -> (B, D).

    All parts are looked up in one native call. Raises ConfigError for a table that multiplies rows, because the product
    of sums is not the sum of products.
    """

    def __init__(self, table: CombinedTable, mode: Literal["sum", "mean", "weighted"] = "sum") -> None:
        super().__init__()
        if table.combination == "mult":
            raise ConfigError(
                f"table {table.name!r}: multiplies the rows of an id before they are pooled, which a bag cannot; use "
                "combine add or concat, or CombinedEmbedding",
                field="combine",
            )
        self.table = table
        self.parts = EmbeddingCollection({str(k): EmbeddingBag(part, mode) for k, part in enumerate(table.parts)})
        self.combination = Combination(table.combination, [part.dim for part in table.parts])

    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        combined: Tensor = self.combination(self.parts(_same(self.parts.names, values, offsets, weights)).parts())
        return combined


class CombinedEmbedding(nn.Module):
    """An Embedding over a table made of several: forward(values, offsets) -> rows (B, L, D), lengths (B,)."""

    def __init__(self, table: CombinedTable, length: int) -> None:
        super().__init__()
        self.table = table
        self.parts = EmbeddingCollection({str(k): Embedding(part, length) for k, part in enumerate(table.parts)})
        self.combination = Combination(table.combination, [part.dim for part in table.parts])

    def forward(self, values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        sequences = self.parts(_same(self.parts.names, values, offsets, None)).sequences
        rows = [sequences[name][0] for name in self.parts.names]
        return self.combination(rows), sequences[self.parts.names[0]][1]


def _same(names: Sequence[str], values: Tensor, offsets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
    """Returns the inputs of a collection whose layers all get these."""
    inputs: dict[str, Tensor] = {}
    for name in names:
        inputs |= {f"{name}.values": values, f"{name}.offsets": offsets}
        if weights is not None:
            inputs[f"{name}.weights"] = weights
    return inputs
