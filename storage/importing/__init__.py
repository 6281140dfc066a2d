"""Reads embedding tables that other systems wrote, row by row, in ascending order of ids and in bounded memory.

docs/importing.md describes the kinds of files. Nothing here loads torch, except where torch wrote the files.
"""

from __future__ import annotations

from storage.importing.kinds import KINDS, Kind
from storage.importing.options import ImportOptions
from storage.importing.sorted_rows import SortedRows
from storage.importing.sorting import RowSort
from storage.importing.source import Block, FileTable

__all__ = ["KINDS", "Block", "FileTable", "ImportOptions", "Kind", "RowSort", "SortedRows"]
