"""The model zoo: ordinary modules over embeddings."""

from __future__ import annotations

from trainer.models.base import FeatureEmbeddings, RankingModel, mlp
from trainer.models.dcnv2 import DcnV2
from trainer.models.deepfm import DeepFm
from trainer.models.din import Din
from trainer.models.dlrm import Dlrm
from trainer.models.hstu import Hstu
from trainer.models.mmoe import Mmoe
from trainer.models.ple import Ple
from trainer.models.registry import MODELS, build_model, build_tables
from trainer.models.sasrec import SasRec
from trainer.models.two_tower import TwoTower
from trainer.models.wide_deep import WideDeep

__all__ = [
    "MODELS",
    "DcnV2",
    "DeepFm",
    "Din",
    "Dlrm",
    "FeatureEmbeddings",
    "Hstu",
    "Mmoe",
    "Ple",
    "RankingModel",
    "SasRec",
    "TwoTower",
    "WideDeep",
    "build_model",
    "build_tables",
    "mlp",
]
