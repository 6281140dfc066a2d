"""Reads Parquet files into batches of features and labels."""

from __future__ import annotations

from storage.data import DataPath, DataRows, Wanted
from trainer.data.batches import Batch, BatchMaker, to_inputs
from trainer.data.prefetch import Prefetcher, mapped
from trainer.data.stream import RowStream
from trainer.data.times import check_time_column

__all__ = [
    "Batch",
    "BatchMaker",
    "DataPath",
    "DataRows",
    "Prefetcher",
    "RowStream",
    "Wanted",
    "check_time_column",
    "mapped",
    "to_inputs",
]
