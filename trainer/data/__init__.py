"""Reads rows of data into batches of features and labels."""

from __future__ import annotations

from storage.data import BlockIndex, Data, DataPath, DataRows, SkippedFile, Wanted
from trainer.data.batches import TOGETHER_ROWS, Batch, BatchMaker, to_inputs
from trainer.data.dealing import Dealer
from trainer.data.device_batches import DeviceBatches, device_of, inputs_on
from trainer.data.located import first_at_fault, located
from trainer.data.prefetch import Prefetcher, mapped
from trainer.data.shared_reading import SharedReading
from trainer.data.shares import Share
from trainer.data.splits import Split
from trainer.data.stream import RowStream
from trainer.data.times import check_time_column
from trainer.data.whole_batch import WholeBatch

__all__ = [
    "TOGETHER_ROWS",
    "Batch",
    "BatchMaker",
    "BlockIndex",
    "Data",
    "DataPath",
    "DataRows",
    "Dealer",
    "DeviceBatches",
    "Prefetcher",
    "RowStream",
    "Share",
    "SharedReading",
    "SkippedFile",
    "Split",
    "Wanted",
    "WholeBatch",
    "check_time_column",
    "device_of",
    "first_at_fault",
    "inputs_on",
    "located",
    "mapped",
    "to_inputs",
]
