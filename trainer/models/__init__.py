"""The model zoo: ordinary modules over embeddings."""

from __future__ import annotations

from trainer.models.base import FeatureEmbeddings, RankingModel, mlp
from trainer.models.deepfm import DeepFm
from trainer.models.din import Din
from trainer.models.dlrm import Dlrm
from trainer.models.registry import MODELS, build_model, build_tables

__all__ = ["MODELS", "DeepFm", "Din", "Dlrm", "FeatureEmbeddings", "RankingModel", "build_model", "build_tables", "mlp"]
