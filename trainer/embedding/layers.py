"""Describes how layers look up tables, and what they are given for a batch. B bags, N ids of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.initializers import AbsentRows
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
