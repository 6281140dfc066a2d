"""Embedding layers over the C++ tables, and the fused optimizers that update them."""

from __future__ import annotations

from storage.initializers import AbsentRows, Initializer
from trainer.admission import BloomAdmission
from trainer.embedding.collection import Embedded, EmbeddingCollection
from trainer.embedding.combining import Combination, CombinedBag, CombinedEmbedding, CombinedTable
from trainer.embedding.hbm import HbmFigures, HbmRows
from trainer.embedding.kinds import (
    classes_table,
    hashed_table,
    multi_hash_table,
    quotient_remainder_table,
    static_table,
)
from trainer.embedding.layers import Chain, ChainLevel
from trainer.embedding.means import refresh_means
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
    clip_gradients,
    global_clip,
    optimizer_classes,
)
from trainer.embedding.table import EmbeddingTable, SparseRule
from trainer.eviction import Eviction

__all__ = [
    "AbsentRows",
    "BloomAdmission",
    "Chain",
    "ChainLevel",
    "Combination",
    "CombinedBag",
    "CombinedEmbedding",
    "CombinedTable",
    "Embedded",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingCollection",
    "EmbeddingTable",
    "Eviction",
    "HbmFigures",
    "HbmRows",
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
    "classes_table",
    "clip_gradients",
    "global_clip",
    "hashed_table",
    "multi_hash_table",
    "optimizer_classes",
    "quotient_remainder_table",
    "refresh_means",
    "static_table",
]
