"""A merge: an overlay's rows become the base's, while lookups go on, in an order in which nobody misses one.

    merge_file     everything is written to sorted files, in short slices; nothing has changed yet
    merge_ingest   SSD has the rows, the deletes, the changed ids and the markers: one atomic, durable step
    merge_dram     DRAM and the absent ids follow (`dram_cache` says why no old row can come back)
    merge_drop     the overlay is gone

Why lookups see one snapshot throughout. Every mask in use shows the overlay as the oldest that is not merged (the
caller's duty). Take an id of the overlay, and a lookup whose mask shows it. If the lookup translated its mask before
the overlay left the view, it sees the overlay whole, which answers unless a newer one does, and the base is not asked.
If it did so after, all steps before merge_drop were done, and the base (DRAM, absent ids, SSD) gives the same row, or
that there is none. A lookup that was told "spilled" reads the overlay's rows on SSD, outside of any section; if they
are gone by then, the overlay has left the view, so SSD has them in the base. All other ids have the same rows before
and after.

Why a crash leaves one snapshot. Before merge_ingest SSD is at the old snapshot, after it at the new one, and `at` was
written in the same step. DRAM and overlays are rebuilt from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from storage._table import OverlayTable
from storage.errors import StoreError
from storage.tiers.dram_cache import DramCache
from storage.tiers.overlays import REMOVED, Overlay
from storage.tiers.pace import Pace
from storage.tiers.sorted_changes import SortedChanges
from storage.tiers.ssd import SsdTier, disk_errors
from storage.tiers.ssd_keys import CHANGED, KEY, marker_key, row_keys, row_values

_SLICE = 128


@dataclass(frozen=True)
class TableMerge:
    """One table's part. number: on SSD. ids (n,) ascending, removed (n,): the flag of each."""

    index: int
    number: int
    dim: int
    ids: np.ndarray
    removed: np.ndarray


def plan_merge(overlay: Overlay, tables: list[OverlayTable], numbers: list[int]) -> list[TableMerge]:
    """What an overlay changes in each table, by table numbers on SSD."""
    parts: list[TableMerge] = []
    for index, table in enumerate(tables):
        ids, kinds = table.ids(overlay.slot)
        order = np.argsort(ids)
        if len(ids):
            parts.append(TableMerge(index, numbers[index], table.dim, ids[order], kinds[order] == REMOVED))
    return sorted(parts, key=lambda part: part.number)


def write_changes(
    changes: SortedChanges,
    ssd: SsdTier,
    overlay: Overlay,
    tables: list[OverlayTable],
    parts: list[TableMerge],
    markers: Mapping[str, str | None],
) -> None:
    """Writes a merge: rows and deletes of all tables, then the changed ids, then the markers; keys ascend."""
    with disk_errors(f"merging into {ssd.path}"):
        for part in parts:
            for ids, removed, rows in row_slices(ssd, overlay, tables, part):
                values: list[bytes | None] = [None] * len(ids)
                for position, value in zip(np.flatnonzero(~removed).tolist(), row_values(rows), strict=True):
                    values[position] = value
                changes.write(row_keys(part.number, ids), values)
        for part in parts:
            for start in range(0, len(part.ids), _SLICE):
                keys = row_keys(CHANGED + part.number, part.ids[start : start + _SLICE])
                changes.write(keys, [b""] * len(keys))
        for name, text in sorted(markers.items()):
            changes.write([marker_key(name)], [None if text is None else text.encode()])
        changes.finish()


def ingest(changes: SortedChanges, ssd: SsdTier) -> None:
    """The atomic step."""
    with disk_errors(f"merging into {ssd.path}"):
        changes.ingest()


def make_room(cache: DramCache, parts: list[TableMerge], pace: Pace) -> dict[int, int]:
    """Has tables that cannot stay complete say so. Returns how many rows each complete table gains, by table index."""
    gained: dict[int, int] = {}
    for part in parts:
        if not cache.complete[part.index]:
            continue
        new = gone = 0
        for start in range(0, len(part.ids), _SLICE):
            piece = slice(start, start + _SLICE)
            found = cache.tiers[part.index].find(part.ids[piece])[1].view(np.bool_)
            new += int(np.count_nonzero(~found & ~part.removed[piece]))
            gone += int(np.count_nonzero(found & part.removed[piece]))
            pace.step()
        cache.make_room(part.index, new, gone)
        gained[part.index] = new - gone
    return gained


def settle(
    cache: DramCache, ssd: SsdTier, overlay: Overlay, tables: list[OverlayTable], parts: list[TableMerge], pace: Pace
) -> None:
    """Puts DRAM right after the ingest: what is gone first, which makes room for what is new."""
    for part in parts:
        nothing = np.empty((0, part.dim), np.float32)
        gone = part.ids[part.removed]
        for start in range(0, len(gone), _SLICE):
            cache.settle(part.index, gone[:0], nothing, gone[start : start + _SLICE])
            pace.step()
        for ids, removed, rows in row_slices(ssd, overlay, tables, part):
            cache.settle(part.index, ids[~removed], rows, gone[:0])
            pace.step()


def row_slices(
    ssd: SsdTier, overlay: Overlay, tables: list[OverlayTable], part: TableMerge
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """ids (n,), removed (n,) and the rows (m, D) of the others, a slice at a time, from memory or from SSD."""
    cursor = 0
    for start in range(0, len(part.ids), _SLICE):
        ids, removed = part.ids[start : start + _SLICE], part.removed[start : start + _SLICE]
        kept = ids[~removed]
        if part.index in overlay.spills:
            rows = np.empty((0, part.dim), np.float32)
            stored = kept[:0]
            if len(kept) and cursor >= 0:
                cursor, stored, rows = ssd.export_batch(overlay.spills[part.index], cursor, len(kept), part.dim)
                if not np.array_equal(stored, kept):
                    raise StoreError(
                        f"{ssd.path}: rows of overlay {overlay.number} are missing; discard and stage it anew"
                    )
        else:
            rows = np.empty((len(kept), part.dim), np.float32)
            states, overlays = np.empty(len(kept), np.uint8), np.empty(len(kept), np.uint8)
            tables[part.index].find(1 << overlay.slot, kept, rows, states, overlays)
        yield ids, removed, rows


def expected_bytes(parts: list[TableMerge]) -> int:
    """About how large the files of a merge become."""
    return sum(len(part.ids) * (part.dim * 4 + 2 * KEY.itemsize) for part in parts)
