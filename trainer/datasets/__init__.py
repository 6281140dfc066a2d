"""Data sets as Parquet: MovieLens-100k, and three generated ones whose best reachable AUC is known."""

from __future__ import annotations

from trainer.datasets.criteo_like import write_criteo_like
from trainer.datasets.movielens import write_movielens
from trainer.datasets.parts import PARTS, DatasetReport
from trainer.datasets.synthetic import write_synthetic
from trainer.datasets.wide import write_wide

__all__ = ["PARTS", "DatasetReport", "write_criteo_like", "write_movielens", "write_synthetic", "write_wide"]
