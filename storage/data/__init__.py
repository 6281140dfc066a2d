"""Reads files of several formats, and folders of them with Hive partitions, as one sequence of rows."""

from __future__ import annotations

from storage.data.columns import Wanted
from storage.data.files import SUFFIXES, DataFile, DataPath, find_files
from storage.data.index import BlockIndex
from storage.data.options import DataOptions, FormatName
from storage.data.rows import DataRows, RowBlock, SkippedFile
from storage.data.sources import Data, described

__all__ = [
    "SUFFIXES",
    "BlockIndex",
    "Data",
    "DataFile",
    "DataOptions",
    "DataPath",
    "DataRows",
    "FormatName",
    "RowBlock",
    "SkippedFile",
    "Wanted",
    "described",
    "find_files",
]
