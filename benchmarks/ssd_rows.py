"""Wraps the store's SSD tier for the benchmarks: every call that they make of it is in this module."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.traffic import Array
from storage.tiers.ssd.tier import SsdTier

TABLE = 0


class SsdRows:
    """Rows of one table (N, D) float32 in a folder."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim = folder, dim
        self.tier = SsdTier.open(folder)

    def load(self, parts: Iterable[tuple[Array, Array]]) -> int:
        """Loads ids (n,), ascending over all parts, and their rows (n, D); syncs them to the disk. Returns how many."""
        return self.tier.bulk_load(TABLE, parts)

    def find(self, ids: Array) -> Array:
        """Returns the (n, D) rows of ids, all of which are present."""
        rows, found = self.tier.find(TABLE, ids, 4 * self.dim)
        if not found.all():
            raise AssertionError(f"{int((found == 0).sum())} rows are missing that were put in")
        return rows.view(np.float32)

    def forget(self) -> None:
        """Does nothing: a cold read needs nothing reopened."""

    def close(self) -> None:
        """Releases the folder."""
        self.tier.close()
