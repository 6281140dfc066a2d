"""Embedding layers over the C++ tables, and the fused optimizers that update them."""

from __future__ import annotations

from storage.initializers import AbsentRows, Initializer
from trainer.admission import BloomAdmission
from trainer.embedding.collection import Embedded, EmbeddingCollection
from trainer.embedding.memory import MemoryFigures, RowMemory
from trainer.embedding.modules import Embedding, EmbeddingBag
from trainer.embedding.optimizers import (
    SparseAdagrad,
    SparseAdagradDecay,
    SparseAdam,
    SparseAdamW,
    SparseFtrl,
    SparseLamb,
    SparseMomentum,
    SparseOptimizer,
    SparseRowwiseAdagrad,
    SparseRowwiseAdam,
    SparseSGD,
    global_clip,
    optimizer_classes,
)
from trainer.embedding.table import EmbeddingTable, SparseRule
from trainer.eviction import Eviction

__all__ = [
    "AbsentRows",
    "BloomAdmission",
    "Embedded",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingCollection",
    "EmbeddingTable",
    "Eviction",
    "Initializer",
    "MemoryFigures",
    "RowMemory",
    "SparseAdagrad",
    "SparseAdagradDecay",
    "SparseAdam",
    "SparseAdamW",
    "SparseFtrl",
    "SparseLamb",
    "SparseMomentum",
    "SparseOptimizer",
    "SparseRowwiseAdagrad",
    "SparseRowwiseAdam",
    "SparseRule",
    "SparseSGD",
    "global_clip",
    "optimizer_classes",
]
