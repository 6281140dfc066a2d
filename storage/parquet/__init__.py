"""Parquet files and folders of them, Hive-partitioned ones too, as one run of rows in an order that never changes."""

from __future__ import annotations

from storage.parquet.columns import Wanted
from storage.parquet.files import DataFile, DataPath, find_files
from storage.parquet.rows import ParquetRows, RowGroup

__all__ = ["DataFile", "DataPath", "ParquetRows", "RowGroup", "Wanted", "find_files"]
