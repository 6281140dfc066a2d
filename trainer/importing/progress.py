"""Progress of an import: what is being done, and how far it is."""

from __future__ import annotations

from collections.abc import Callable

from storage.importing import FileTable

#: Called with what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""


def counted(table: FileTable, progress: Progress) -> Callable[[int], None]:
    """Returns a function that takes numbers of rows of a table and says how many there were so far."""
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        progress(f"rows of {table.name}", min(done, table.rows), table.rows)

    return count
