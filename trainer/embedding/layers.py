"""Describes how layers look up tables, and what they are given for a batch. B bags, N ids of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from storage.errors import ConfigError
from storage.initializers import AbsentRows
from trainer.embedding.table import EmbeddingTable, Ids

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class ChainLevel:
    """A level of a chain: its table, and whether id i of a bag of the level stands for id i of the layer's.

    Otherwise the one id of a bag stands for all. A bag may be empty, then the next level is asked.
    """

    table: EmbeddingTable
    parallel: bool = False


@dataclass(frozen=True)
class Chain:
    """The rows that an id without one reads instead: the first level that has a row, then the mean.

    They get the gradients of what they stand for; the mean gets none. A row that training creates begins as what its id
    would read. mean: a table of one row, see `refresh_means`. share: of the ids with a row, those that read the
    chain in training all the same, drawn anew each step, so that its rows learn to stand for others.
    """

    levels: tuple[ChainLevel, ...] = ()
    mean: EmbeddingTable | None = None
    share: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ConfigError(f"share is {self.share}, expected 0 or more and below 1", field="share")


@dataclass(frozen=True)
class LayerLookup:
    """Says how a layer looks up a table. pooling: one of POOLINGS. length: of pooling none, the ids used of a bag.

    absent: what ids without a row read as; None: what the table says. chain: what they read first. levels: numbers of
    the layers of the same lookup whose ids are those of the chain's levels. hidden: the layer is a level alone: its ids
    are not counted, and it has no result.
    """

    table: EmbeddingTable
    pooling: str
    length: int = 0
    absent: AbsentRows | None = None
    chain: Chain | None = None
    levels: tuple[int, ...] = ()
    hidden: bool = False

    def with_levels(self) -> list[LayerLookup]:
        """Returns the lookups of a layer that is given the ids of its levels: its own, and hidden ones for these."""
        if self.chain is None:
            return [self]
        hidden = [LayerLookup(level.table, "sum", hidden=True) for level in self.chain.levels]
        return [replace(self, levels=tuple(range(1, len(hidden) + 1))), *hidden]


@dataclass(frozen=True)
class LayerIds:
    """The ids of a layer: values (N,), offsets (B + 1,), with pooling weighted weights (N,)."""

    values: Ids
    offsets: Ids
    weights: Weights | None = None
