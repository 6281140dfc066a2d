"""A merge moves an overlay's rows into the base while lookups go on, in an order in which no lookup misses a row.

    merge_file     everything is written to sorted files, in short slices; nothing has changed yet
    merge_ingest   SSD has the rows, the deletes, the changed ids and the markers: one atomic, durable step
    merge_dram     DRAM and the absent ids follow (`dram_cache` explains why no old row can come back)
    merge_drop     the overlay is gone

Lookups see one snapshot throughout, for this reason. Every mask in use shows the overlay as the oldest that is not
merged (the caller sees to it). Take an id of the overlay, and a lookup whose mask shows it. If the lookup translated
its mask before the overlay left the view, it sees the overlay whole, which answers unless a newer one does, and the
base is not asked. If it did so afterwards, all steps before merge_drop were done, and the base (DRAM, absent ids, SSD)
gives the same row, or none if there is none. A lookup that gets the state "spilled" reads the overlay's rows on SSD
after it has left `inside`; if they are gone by then, the overlay has left the view, so SSD has them in the base. All
other ids have the same rows before and after.

A crash leaves one snapshot, for this reason. Before merge_ingest SSD is at the old snapshot, after it at the new one,
and `at` was written in the same step. DRAM and overlays are rebuilt from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storage._table import OverlayTable
from storage.errors import StoreError
from storage.rows import RowCodec
from storage.tiers.content import Content
from storage.tiers.dram_cache import DramCache
from storage.tiers.overlays import REMOVED, Overlay
from storage.tiers.pace import Pace
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.keys import CHANGED, KEY, marker_key, row_keys, row_values
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.tier import SsdTier

# The steps that a merge reports when it has done them, in order.
MERGE_STEPS = ("merge_file", "merge_ingest", "merge_dram", "merge_drop")
_SLICE = 128


@dataclass(frozen=True)
class TablePart:
    """The changes of an overlay to one table."""

    #: The table's index in the store.
    index: int
    #: The table's number on SSD.
    number: int
    #: The codec of its rows, which are moved as they are stored.
    codec: RowCodec
    #: (n,) int64, ascending.
    ids: np.ndarray
    #: (n,) bool, whether the overlay removes the id.
    removed: np.ndarray


class Merge:
    """Merges one overlay when `run` is called. tables: the native tables; numbers: theirs on SSD, in the same order."""

    def __init__(
        self,
        overlay: Overlay,
        tables: Sequence[OverlayTable],
        numbers: Sequence[int],
        ssd: SsdTier,
        content: Content,
        cache: DramCache,
        pace: Pace,
    ) -> None:
        self._overlay = overlay
        self._tables = tables
        self._ssd = ssd
        self._content = content
        self._cache = cache
        self._pace = pace
        self.gained: dict[int, int] = {}  # rows of each table that DRAM held whole, by its index
        parts: list[TablePart] = []
        for index, table in enumerate(tables):
            ids, kinds = table.ids(overlay.slot)
            order = np.argsort(ids)
            if len(ids):
                codec = RowCodec(table.row_type, table.dim)
                parts.append(TablePart(index, numbers[index], codec, ids[order], kinds[order] == REMOVED))
        self._parts = sorted(parts, key=lambda part: part.number)

    def run(
        self, at: str, words: Mapping[str, str | None], drop: Callable[[Overlay], None], step: Callable[[str], None]
    ) -> None:
        """Moves the base to snapshot `at` and writes the caller's markers. drop: called last, drops the overlay.

        step: called with the name of each step when it is done. Raises StoreError; before merge_ingest nothing has
        changed, after it the merge can be repeated.
        """
        self._ssd.database.mend()
        self._content.refresh()
        expected = sum(len(part.ids) * (part.codec.row_bytes + 2 * KEY.itemsize) for part in self._parts)
        with self._ssd.changes(self._pace, expected) as changes:
            self._write(changes, self._content.markers(at, words))
            step("merge_file")
            self._make_room()
            self._ingest(changes)
        self._content.at = at
        step("merge_ingest")
        self._settle()
        step("merge_dram")
        drop(self._overlay)
        step("merge_drop")

    def _write(self, changes: SortedChanges, markers: Mapping[str, str | None]) -> None:
        """Writes the rows and deletes of all tables, then the changed ids, then the markers: keys must ascend."""
        with disk_errors(f"merging into {self._ssd.path}"):
            for part in self._parts:
                for ids, removed, rows in self._slices(part):
                    values: list[bytes | None] = [None] * len(ids)
                    stored = row_values(rows)
                    for position, value in zip(np.flatnonzero(~removed).tolist(), stored, strict=True):
                        values[position] = value
                    changes.write_rows(part.number, ids, values)
            for part in self._parts:
                for start in range(0, len(part.ids), _SLICE):
                    keys = row_keys(CHANGED + part.number, part.ids[start : start + _SLICE])
                    changes.write(keys, [b""] * len(keys))
            for name, text in sorted(markers.items()):
                changes.write([marker_key(name)], [None if text is None else text.encode()])
            changes.finish()

    def _make_room(self) -> None:
        """Ends the completeness of tables without room for the merged rows, before SSD has more rows than they do."""
        for part in self._parts:
            if not self._cache.is_complete(part.index):
                continue
            new = gone = 0
            for start in range(0, len(part.ids), _SLICE):
                piece = slice(start, start + _SLICE)
                found = self._cache.tiers[part.index].find(part.ids[piece])[1].view(np.bool_)
                new += int(np.count_nonzero(~found & ~part.removed[piece]))
                gone += int(np.count_nonzero(found & part.removed[piece]))
                self._pace.step()
            self._cache.make_room(part.index, new, gone)
            self.gained[part.index] = new - gone

    def _ingest(self, changes: SortedChanges) -> None:
        try:
            with disk_errors(f"merging into {self._ssd.path}"):
                changes.ingest()
        finally:
            # Also when it failed: it is unknown then whether a read saw the old rows or the new ones.
            self._cache.forget_reads()

    def _settle(self) -> None:
        """Updates DRAM: removes rows first, which makes room for the new ones."""
        for part in self._parts:
            nothing = np.empty((0, part.codec.row_bytes), np.uint8)
            gone = part.ids[part.removed]
            for start in range(0, len(gone), _SLICE):
                self._cache.settle(part.index, gone[:0], nothing, gone[start : start + _SLICE])
                self._pace.step()
            for ids, removed, rows in self._slices(part):
                self._cache.settle(part.index, ids[~removed], rows, gone[:0])
                self._pace.step()

    def _slices(self, part: TablePart) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields ids (n,), removed (n,) and the encoded rows of the others by slices, from memory or from SSD."""
        cursor = 0
        for start in range(0, len(part.ids), _SLICE):
            ids, removed = part.ids[start : start + _SLICE], part.removed[start : start + _SLICE]
            kept = ids[~removed]
            rows = np.empty((len(kept), part.codec.row_bytes), np.uint8)
            if part.index not in self._overlay.spills:
                values = np.empty((len(kept), part.codec.dim), np.float32)
                states, overlays = np.empty(len(kept), np.uint8), np.empty(len(kept), np.uint8)
                self._tables[part.index].find(1 << self._overlay.slot, kept, values, states, overlays)
                rows = part.codec.encode(values)
            elif len(kept):
                stored = kept[:0]
                if cursor >= 0:
                    number = self._overlay.spills[part.index]
                    row_bytes = part.codec.row_bytes
                    cursor, stored, rows = self._ssd.export_batch(number, cursor, len(kept), row_bytes)
                if not np.array_equal(stored, kept):
                    raise StoreError(
                        f"{self._ssd.path}: rows of overlay {self._overlay.number} are lost; stage it anew"
                    )
            yield ids, removed, rows
