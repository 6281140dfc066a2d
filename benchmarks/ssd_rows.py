"""The store's SSD tier as the benchmarks use it: everything that they ask of it stands here."""

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
        """Ids (n,) ascending over all parts, and their rows (n, D); on the disk when it returns. Returns how many."""
        return self.tier.bulk_load(TABLE, parts)

    def find(self, ids: Array) -> Array:
        """(n, D) rows of ids that are all there."""
        rows, found = self.tier.find(TABLE, ids, 4 * self.dim)
        if not found.all():
            raise AssertionError(f"{int((found == 0).sum())} rows are missing that were put in")
        return rows.view(np.float32)

    def forget(self) -> None:
        """Nothing to reopen before a cold read."""

    def close(self) -> None:
        """Releases the folder."""
        self.tier.close()
