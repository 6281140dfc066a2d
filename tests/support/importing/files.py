"""Reads tables of files for tests of importers."""

from __future__ import annotations

import numpy as np

from storage.importing import FileTable


def content(table: FileTable) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns all ids, rows and counts of a table, and compares its two ways of giving ids."""
    blocks = list(table.blocks())
    ids = np.concatenate([block.ids for block in blocks])
    np.testing.assert_array_equal(np.concatenate(list(table.ids())), ids)
    counts = [block.counts for block in blocks if block.counts is not None]
    return ids, np.concatenate([block.rows for block in blocks]), np.concatenate(counts) if counts else None
