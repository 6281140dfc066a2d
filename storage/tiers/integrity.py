"""Checks what must hold between the tiers at any moment when nothing is being merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from storage._table import OverlayTable
from storage.errors import StoreError
from storage.tiers.arrays import Encoded, Flags, Ids
from storage.tiers.dram_cache import DramCache

_ROWS = 1 << 12


def check_integrity(
    cache: DramCache, overlays: Sequence[OverlayTable], find: Callable[[int, Ids], tuple[Encoded, Flags]]
) -> None:
    """Raises a StoreError that names the table and the broken rule. find: rows and flags of a table's ids on SSD.

    Lookups may go on; rows that are evicted or come in meanwhile may or may not be checked.
    """
    try:
        for overlay in overlays:
            overlay.check_integrity()
        cache.check_integrity()
    except RuntimeError as error:
        raise StoreError(f"an index in memory is broken: {error}") from error
    for index, spec in enumerate(cache.tables):
        cursor = 0
        while cursor >= 0:
            cursor, ids, rows, _ = cache.tiers[index].export_encoded(cursor, _ROWS)
            stored, found = find(index, ids)
            wrong = np.flatnonzero((found == 0) | (stored != rows).any(1))
            if len(wrong):
                raise StoreError(f"table {spec.name!r}: DRAM and SSD differ in the row of id {ids[wrong[0]]}")
            if cache.negative[index].contains(ids).any():
                first = ids[cache.negative[index].contains(ids)][0]
                raise StoreError(f"table {spec.name!r}: id {first} has a row and is remembered as absent")
