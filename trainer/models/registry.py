"""Builds models from configurations: the one place that knows all models of the zoo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer.config import TrainConfig
from trainer.embedding import EmbeddingTable, RowMemory
from trainer.embedding.kinds import table_of
from trainer.model_config import OwnModelConfig
from trainer.models.base import FeatureEmbeddings, RankingModel
from trainer.models.dcnv2 import DcnV2
from trainer.models.deepfm import DeepFm
from trainer.models.din import Din
from trainer.models.dlrm import Dlrm
from trainer.models.hstu import Hstu
from trainer.models.mmoe import Mmoe
from trainer.models.own import own_model
from trainer.models.ple import Ple
from trainer.models.sasrec import SasRec
from trainer.models.two_tower import TwoTower
from trainer.models.wide_deep import WideDeep
from trainer.ranks import Ranks

#: The classes by `model.type` of a configuration, which a published version also names.
MODELS: dict[str, type[RankingModel]] = {
    "dlrm": Dlrm,
    "deepfm": DeepFm,
    "wide_deep": WideDeep,
    "dcnv2": DcnV2,
    "din": Din,
    "mmoe": Mmoe,
    "ple": Ple,
    "sasrec": SasRec,
    "hstu": Hstu,
    "two_tower": TwoTower,
}


def build_tables(
    config: TrainConfig, memory: RowMemory | None = None, ranks: Ranks | None = None
) -> dict[str, EmbeddingTable]:
    """Builds empty tables by name, ready for the sparse optimizer of the configuration.

    memory: bounds their DRAM. ranks: those among which their rows are divided.
    """
    sparse = config.optimizer.sparse
    tables = {
        part.rows.name: table_of(
            part,
            transforms=False,  # they are those of config.spec
            optimizer=sparse.type,
            seed=config.training.seed,
            initial_accumulator=getattr(sparse, "initial_accumulator", 0.0),
            memory=memory,
            ranks=ranks,
        )
        for part in config.row_tables
    }
    for mean, of in config.spec.mean_tables.items():
        # Of the same optimizer as the others, which never steps it: no gradient goes to a mean.
        tables[mean] = EmbeddingTable(mean, tables[of].dim, optimizer=sparse.type, ranks=ranks)
    return tables


def build_model(config: TrainConfig, tables: Mapping[str, EmbeddingTable]) -> RankingModel:
    """Builds the model of the configuration over these tables.

    Dense weights are drawn from torch's generator: seed it before. Raises ConfigError when the features do not suit it.
    """
    model = _built(config, tables)
    model.log_odds_shift = math.log(config.data.negative_sampling)
    return model


def _built(config: TrainConfig, tables: Mapping[str, EmbeddingTable]) -> RankingModel:
    share = config.training.fallback_share
    features = FeatureEmbeddings(config.spec, tables, config.combined, config.targets.tasks, share)
    if isinstance(config.model, OwnModelConfig):
        return own_model(config.model, features)
    made: Any = MODELS[config.model.type]
    model: RankingModel = made(features, config.model)
    return model
