"""Reads Parquet files and folders of them, also Hive-partitioned ones, as one sequence of rows in a fixed order."""

from __future__ import annotations

from storage.parquet.columns import Wanted
from storage.parquet.files import DataFile, DataPath, find_files
from storage.parquet.rows import ParquetRows, RowGroup

__all__ = ["DataFile", "DataPath", "ParquetRows", "RowGroup", "Wanted", "find_files"]
