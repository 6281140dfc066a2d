"""What the SSD tier counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SsdStats:
    """Sizes now, counts since the store was opened.

    page_bytes, database_bytes: on the disk. memory_bytes: of directories, filters and sets of changed ids.
    changed_rows: rows, or absences, that lie on top of the page files. pages_coalesced: reads that another call's read
    served. ids_filtered: absent ids that cost no read. compaction_error: why the last background compaction did not
    end, or None. io: "uring" or "threads". direct: whether rows are read past the page cache.
    """

    page_bytes: int
    database_bytes: int
    memory_bytes: int
    changed_rows: int
    pages_read: int
    pages_coalesced: int
    ids_unresolved: int
    ids_filtered: int
    compactions: int
    compaction_error: str | None
    io: str
    direct: bool
