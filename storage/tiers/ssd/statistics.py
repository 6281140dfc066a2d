"""Defines the statistics of the SSD tier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SsdStats:
    """Present sizes, and counts since the store was opened."""

    #: The bytes of page files on the disk.
    page_bytes: int
    #: The bytes of the database on the disk.
    database_bytes: int
    #: The bytes of directories, filters and sets of changed ids in memory.
    memory_bytes: int
    #: The rows, or absences, that lie on top of the page files.
    changed_rows: int
    pages_read: int
    #: The reads that another call's read served.
    pages_coalesced: int
    ids_unresolved: int
    #: The absent ids that cost no read.
    ids_filtered: int
    compactions: int
    #: The reason why the last background compaction failed, or None.
    compaction_error: str | None
    #: "uring" or "threads".
    io: str
    #: Whether rows are read past the page cache.
    direct: bool
