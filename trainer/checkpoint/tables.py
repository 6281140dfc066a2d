"""The tables in a commit: whole, or what changed since the parent. N rows, D dim, S optimizer values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from trainer.embedding import EmbeddingTable

Arrays = dict[str, np.ndarray[Any, Any]]

_ROWS = ("ids", "rows", "slots", "counts", "stamps", "ticks")
_WAITING = ("waiting_ids", "waiting_counts")
#: The arrays of a table in a commit.
TABLE_FIELDS = (*_ROWS, *_WAITING, "removed_ids", "removed_stamps")
#: The blocks of a filter follow from the buckets of the ids; before, from a hash of their own.
FILTER_LAYOUT = 2
# Bytes of the id, count, stamp and tick of a row.
_ROW_BYTES = 20
# The native table knows changes of waiting counts for 64 stamps; some are left for those of the save itself.
_WAITING_STAMPS = 60


def table_path(name: str, rank: int = 0, ranks: int = 1) -> str:
    """Returns the path within a commit of a table, or of the part that one of several ranks had of it."""
    return f"tables/{name}.safetensors" if ranks == 1 else f"tables/{name}/{rank}-of-{ranks}.safetensors"


def table_paths(name: str, files: Iterable[str]) -> list[str]:
    """Returns the paths of a table among the files of a commit, those of its parts by rank; none if it is not there."""
    part = re.compile(rf"tables/{re.escape(name)}/([0-9]+)-of-[0-9]+\.safetensors")
    parts = sorted((int(match[1]), path) for path in files if (match := part.fullmatch(path)))
    return [path for path in files if path == table_path(name)] + [path for _, path in parts]


def changed_bytes(table: EmbeddingTable, since: int) -> int | None:
    """Estimates the bytes that the changes after a stamp take; None when changes are not known so far back."""
    if table.stamp - since > _WAITING_STAMPS:
        return None
    rows = len(table.changed_since(since)) * (_ROW_BYTES + 4 * (table.dim + table.slots))
    return rows + sum(array.nbytes for array in _filter_arrays(table, since).values())


def whole_table(table: EmbeddingTable) -> Arrays:
    """Returns everything in a table."""
    return _arrays(table, 0, table.export_rows(), table.export_counts())


def changed_table(table: EmbeddingTable, since: int) -> Arrays | None:
    """Returns what changed after a stamp: rows, removed ids, counts of ids without a row or pages of their filter.

    None when nothing changed.
    """
    ids = table.changed_since(since)
    arrays = _arrays(table, since, (ids, *table.export_ids(ids)), table.waiting_since(since))
    if not any(len(arrays.get(name, ())) for name in ("ids", "waiting_ids", "removed_ids", "filter_pages")):
        return None
    return arrays


def _arrays(
    table: EmbeddingTable,
    since: int,
    rows: tuple[np.ndarray[Any, Any], ...],
    waiting: tuple[np.ndarray[Any, Any], ...],
) -> Arrays:
    removed_ids, removed_stamps = table.removed()
    new = removed_stamps > since
    return {
        **dict(zip(_ROWS, rows, strict=True)),
        **dict(zip(_WAITING, waiting, strict=True)),
        "removed_ids": removed_ids[new],
        "removed_stamps": removed_stamps[new],
        **_filter_arrays(table, since),
    }


def _filter_arrays(table: EmbeddingTable, since: int) -> Arrays:
    """Returns the pages (P,) of a table's filter that changed after a stamp, and their content (P, 512)."""
    if table.filter_shape[0] == 0:
        return {}
    pages, content = table.filter_pages(since)
    return {
        "filter_shape": np.array((*table.filter_shape, FILTER_LAYOUT), np.int64),
        "filter_pages": pages,
        "filter_content": content,
    }
