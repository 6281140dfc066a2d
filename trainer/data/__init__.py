"""From Parquet files to batches of features and labels."""

from __future__ import annotations

from trainer.data.batches import Batch, BatchMaker, to_inputs
from trainer.data.files import ParquetRows
from trainer.data.prefetch import Prefetcher
from trainer.data.stream import RowStream

__all__ = ["Batch", "BatchMaker", "ParquetRows", "Prefetcher", "RowStream", "to_inputs"]
