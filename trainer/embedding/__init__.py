"""Embedding layers over the C++ table, and the fused optimizers that update it."""

from __future__ import annotations

from trainer.embedding.memory import MemoryFigures, RowMemory
from trainer.embedding.modules import Embedding, EmbeddingBag
from trainer.embedding.optimizers import SparseAdagrad, SparseOptimizer, SparseSGD
from trainer.embedding.table import EmbeddingTable

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingTable",
    "MemoryFigures",
    "RowMemory",
    "SparseAdagrad",
    "SparseOptimizer",
    "SparseSGD",
]
