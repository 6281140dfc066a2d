"""The companion trainer: embedding layers over the C++ table, a model zoo, the loop, and publishing.

Importing this package loads no torch; each name loads its part when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy import lazy_names

if TYPE_CHECKING:
    from trainer.config import TrainConfig, load_config
    from trainer.dense_sums import sum_gradients
    from trainer.embedding import (
        AbsentRows,
        CombinedBag,
        CombinedEmbedding,
        CombinedTable,
        Embedded,
        Embedding,
        EmbeddingBag,
        EmbeddingCollection,
        EmbeddingTable,
        Initializer,
        RowMemory,
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
        classes_table,
        global_clip,
        hashed_table,
        multi_hash_table,
        quotient_remainder_table,
        static_table,
    )
    from trainer.following import follow
    from trainer.item_embeddings import export_item_embeddings
    from trainer.metrics import auc, log_loss, paired_bootstrap
    from trainer.models import FeatureEmbeddings, RankingModel
    from trainer.publishing import publish
    from trainer.ranks import Ranks, join_ranks
    from trainer.report import TrainReport, UpdateReport
    from trainer.run import train
    from trainer.trained import Trained, load_trained
    from trainer.updates import update
    from trainer.warm_start import StartFrom, StartReport, plan_start, start_module

_HOMES = {
    "AbsentRows": "trainer.embedding",
    "CombinedBag": "trainer.embedding",
    "CombinedEmbedding": "trainer.embedding",
    "CombinedTable": "trainer.embedding",
    "Embedded": "trainer.embedding",
    "Embedding": "trainer.embedding",
    "EmbeddingBag": "trainer.embedding",
    "EmbeddingCollection": "trainer.embedding",
    "EmbeddingTable": "trainer.embedding",
    "FeatureEmbeddings": "trainer.models",
    "Initializer": "trainer.embedding",
    "RankingModel": "trainer.models",
    "Ranks": "trainer.ranks",
    "RowMemory": "trainer.embedding",
    "SparseAdagrad": "trainer.embedding",
    "SparseAdagradDecay": "trainer.embedding",
    "SparseAdam": "trainer.embedding",
    "SparseAdamW": "trainer.embedding",
    "SparseFtrl": "trainer.embedding",
    "SparseLamb": "trainer.embedding",
    "SparseMomentum": "trainer.embedding",
    "SparseOptimizer": "trainer.embedding",
    "SparseRowwiseAdagrad": "trainer.embedding",
    "SparseRowwiseAdam": "trainer.embedding",
    "SparseSGD": "trainer.embedding",
    "StartFrom": "trainer.warm_start",
    "StartReport": "trainer.start_report",
    "TrainConfig": "trainer.config",
    "TrainReport": "trainer.report",
    "Trained": "trainer.trained",
    "UpdateReport": "trainer.report",
    "auc": "trainer.metrics",
    "classes_table": "trainer.embedding",
    "export_item_embeddings": "trainer.item_embeddings",
    "follow": "trainer.following",
    "global_clip": "trainer.embedding",
    "hashed_table": "trainer.embedding",
    "join_ranks": "trainer.ranks",
    "load_config": "trainer.config",
    "load_trained": "trainer.trained",
    "log_loss": "trainer.metrics",
    "multi_hash_table": "trainer.embedding",
    "paired_bootstrap": "trainer.metrics",
    "plan_start": "trainer.warm_start",
    "publish": "trainer.publishing",
    "quotient_remainder_table": "trainer.embedding",
    "static_table": "trainer.embedding",
    "sum_gradients": "trainer.dense_sums",
    "start_module": "trainer.warm_start",
    "train": "trainer.run",
    "update": "trainer.updates",
}

__all__ = [
    "AbsentRows",
    "CombinedBag",
    "CombinedEmbedding",
    "CombinedTable",
    "Embedded",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingCollection",
    "EmbeddingTable",
    "FeatureEmbeddings",
    "Initializer",
    "RankingModel",
    "Ranks",
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
    "SparseSGD",
    "StartFrom",
    "StartReport",
    "TrainConfig",
    "TrainReport",
    "Trained",
    "UpdateReport",
    "auc",
    "classes_table",
    "export_item_embeddings",
    "follow",
    "global_clip",
    "hashed_table",
    "join_ranks",
    "load_config",
    "load_trained",
    "log_loss",
    "multi_hash_table",
    "paired_bootstrap",
    "plan_start",
    "publish",
    "quotient_remainder_table",
    "start_module",
    "static_table",
    "sum_gradients",
    "train",
    "update",
]


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
