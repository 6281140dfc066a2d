"""Sorts a table by its ids alone, and fetches the rows in their order from the files, part by part.

Every part goes over all files, which costs little while the page cache holds them, and much when the disk has to read
them again. So this is for tables that fit into the memory that is free on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from storage.errors import InvalidInput
from storage.importing.row_files import RowFiles
from storage.importing.sorted_rows import SortedRows, refuse_different
from storage.importing.source import FileTable
from storage.machine_memory import memory_of_machine

# Bytes of a row that stay while rows are fetched: its id and its place.
_SORT_BYTES = 16
# The rest is for shards that are written meanwhile.
_ROWS_SHARE = 0.75
# One part is fetched while the one before is passed on.
_PARTS_AT_ONCE = 2
# With more parts, going over the files takes longer than copying the rows.
_MOST_PARTS = 64


def fits_by_place(files: RowFiles, memory_bytes: int) -> bool:
    """Returns whether a table is sorted in so much memory this way, and its files fit into the page cache."""
    part_bytes = _part_bytes(files, memory_bytes)
    if part_bytes <= 0 or files.size_bytes > _MOST_PARTS * part_bytes:
        return False
    return 2 * files.size_bytes <= _available_bytes()


def rows_by_place(
    table: FileTable, files: RowFiles, memory_bytes: int, progress: Callable[[int], None]
) -> Iterator[SortedRows]:
    """Yields all rows; the arrays of a block are used again when the next one is asked for.

    Raises InvalidInput for a row that no table can hold, or two different rows of an id.
    """
    ids = np.concatenate(list(table.ids()))
    # Of rows of one id all must be equal, so any order of them will do.
    order = np.argsort(ids)
    ids = ids[order]
    per_part = max(1, _part_bytes(files, memory_bytes) // (4 * table.dim))
    bounds = _bounds(ids, per_part)
    largest = max(end - start for start, end in bounds)
    memory = [np.empty((largest, table.dim), np.float32) for _ in range(_PARTS_AT_ONCE)]

    def fetch(number: int) -> SortedRows:
        start, end = bounds[number]
        places, rows, part = order[start:end], memory[number % len(memory)][: end - start], ids[start:end]
        if (bad := files.gather(places, rows)) is not None:
            raise InvalidInput(
                f"table {table.name!r}: the row of id {part[bad]} in {files.file_of(places[bad])} holds NaN or infinity"
            )
        same = part[1:] == part[:-1]
        if not same.any():
            return SortedRows(part, rows, None)

        def file_of(row: int) -> str:
            return str(files.file_of(places[row]))

        refuse_different(table.name, part, rows, same, file_of)
        keep = np.append(~same, True)
        return SortedRows(part[keep], rows[keep], None, int(np.count_nonzero(same)))

    with ThreadPoolExecutor(1, "emberline-import") as pool:
        coming = pool.submit(fetch, 0)
        for number in range(len(bounds)):
            block = coming.result()
            if number + 1 < len(bounds):
                coming = pool.submit(fetch, number + 1)
            progress(len(block.ids) + block.repeated)
            yield block


def _part_bytes(files: RowFiles, memory_bytes: int) -> int:
    return (int(_ROWS_SHARE * memory_bytes) - files.window_bytes - _SORT_BYTES * files.rows) // _PARTS_AT_ONCE


def _bounds(ids: np.ndarray, per_part: int) -> list[tuple[int, int]]:
    """Returns first and end of the parts of sorted ids; equal ids are in one part."""
    bounds, start = [], 0
    while start < len(ids):
        end = min(start + per_part, len(ids))
        if end < len(ids):
            first = int(np.searchsorted(ids, ids[end]))
            end = first if first > start else int(np.searchsorted(ids, ids[end], "right"))
        bounds.append((start, end))
        start = end
    return bounds


def _available_bytes() -> int:
    """Returns the memory that can be had on this machine, within the limit of a container; 0 where it is not known."""
    memory = memory_of_machine()
    free = 0 if memory is None else memory[1]
    try:
        folder = Path("/sys/fs/cgroup")
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)
