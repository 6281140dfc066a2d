"""Reads Parquet files and folders of them, also Hive-partitioned ones, as one sequence of rows in a fixed order."""

from __future__ import annotations

from storage.data.columns import Wanted
from storage.data.files import DataFile, DataPath, find_files
from storage.data.rows import DataRows, RowGroup

__all__ = ["DataFile", "DataPath", "DataRows", "RowGroup", "Wanted", "find_files"]
