"""Reads files of several formats, and folders of them with Hive partitions, as one sequence of rows."""

from __future__ import annotations

from storage.data.columns import Wanted
from storage.data.convert import ROW_GROUP_ROWS, ConvertReport, convert
from storage.data.files import SUFFIXES, DataFile, DataPath, find_files, format_by_name
from storage.data.index import BlockIndex
from storage.data.options import DataOptions, FormatName
from storage.data.rows import DataRows, RowBlock, SkippedFile, cut_blocks
from storage.data.sources import Data, described

__all__ = [
    "ROW_GROUP_ROWS",
    "SUFFIXES",
    "BlockIndex",
    "ConvertReport",
    "Data",
    "DataFile",
    "DataOptions",
    "DataPath",
    "DataRows",
    "FormatName",
    "RowBlock",
    "SkippedFile",
    "Wanted",
    "convert",
    "cut_blocks",
    "described",
    "find_files",
    "format_by_name",
]
