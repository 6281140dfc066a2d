"""Keeps a part of a training table on SSD; to its caller it is a `TrainingTable` with every row in it.

What DRAM has of an id is newer than what the store has of it; an id that is not in DRAM is in the store as it left
DRAM. Before training uses an id, its row is brought from the store. Rows leave DRAM when their memory is needed, the
least used ones first, and only after the store has taken them. N ids, B bags, D dim, S optimizer values.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from storage._table import TrainingTable
from storage.errors import ConfigError
from storage.tiers.training.budget import RowBudget
from storage.tiers.training.store import Found, TrainingStore

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Counts = NDArray[np.uint32]

# Beside its values a row takes 14 to 28 bytes of index, 12 of counts, 12 of what the tiers need, two to four entries in
# the log of changes, an entry for eviction, and its part of a batch's notes about absent ids.
_ROW_OVERHEAD = 112
# An id without a row is in up to three open-addressing maps and a log.
_BARE_BYTES = 112
# Ids without a row may take this part of a table's share before they go to the store.
_BARE_SHARE = 0.25
# Rows leave in groups, so that not every batch writes: this part of the share is freed at once.
_LEAVE_SHARE = 1 / 16
_PIECE_BYTES = 16 << 20


@dataclass
class Traffic:
    """The rows that moved between DRAM and the store since the table was made."""

    #: The rows brought to DRAM that were read before their batch began.
    fetched_ahead: int = 0
    #: The rows brought to DRAM that were read while their batch waited.
    fetched_late: int = 0
    #: The rows that left DRAM.
    left: int = 0
    #: Those of them that had to be written, because the store did not have them as they were.
    written: int = 0


@dataclass
class Staged:
    """The rows that were read for a coming batch."""

    found: Found | None = None
    #: The ids whose records in the store have changed since.
    stale: list[Ids] = field(default_factory=list)


class TieredRows:
    """Holds the rows of a training table in DRAM and in a store. `TrainingTable` documents methods of the same name.

    One thread trains; another one may call `stage`. name, number: those of the table, in messages and in the store.
    native: the rows in DRAM, a table made with tiered=True. budget: shared with other tables. evicts_by_age: rows are
    asked for by the tick of their last use, and not only once by their norm.
    """

    def __init__(
        self,
        name: str,
        number: int,
        native: TrainingTable,
        *,
        store: TrainingStore,
        budget: RowBudget,
        evicts_by_age: bool = True,
    ) -> None:
        self.name = name
        self.number = number
        self.native = native
        self.dim = native.dim
        self.slots = native.slots
        self.share_bytes = 0
        self.traffic = Traffic()
        self.store = store
        self.budget = budget
        self.evicts_by_age = evicts_by_age
        self.row_bytes = 4 * (self.dim + self.slots) + _ROW_OVERHEAD
        # The numbers of rows, and of ids that wait for one, that are in the store alone.
        self.rows_outside = 0
        self.waiting_outside = 0
        self._staged: Staged | None = None
        self._staging = threading.Lock()
        self.forgotten = 0
        budget.join(self, native.filter_bytes)

    @property
    def record_bytes(self) -> int:
        """The bytes of a row in the store."""
        return self.native.record_bytes

    def size(self) -> int:
        """Returns the number of rows, in DRAM and in the store."""
        return self.native.size() + self.rows_outside

    def waiting(self) -> int:
        """Returns the number of ids that were seen and have no row; with a filter, an estimate."""
        if self.native.filter_bytes:
            return max(0, round(self.native.filter_ids()) - self.size())
        return self.native.waiting_size() + self.waiting_outside

    def memory_bytes(self) -> int:
        """Returns the bytes of DRAM that the table takes."""
        return self.native.memory_bytes()

    def stage(self, ids: Ids) -> None:
        """Reads the rows that the next batch will need, which `hold` takes. Another thread than training calls it."""
        staged = Staged()
        with self._staging:
            self._staged = staged
        unknown, _ = self.native.unknown(ids, False)
        staged.found = self.store.read(self.number, unknown, self.record_bytes)

    def hold(self, ids: Ids) -> None:
        """Begins a batch of these ids: their rows come to DRAM and stay until the next one begins.

        Raises ConfigError when the budget does not hold so many rows.
        """
        self.native.begin()
        try:
            # Rows that leave to make room for the batch also make the copies that were read for it stale.
            self.bring(ids, self._staged)
        finally:
            with self._staging:
                self._staged = None

    def lookup(self, ids: Ids, out: Rows, train: bool) -> int:
        """Looks up rows as `TrainingTable.lookup` does. Evaluation reads rows from the store without moving them."""
        if train:
            self.bring(ids)
            return self.native.lookup(ids, out, True)
        return self.native.lookup(ids, out, False, *self.beside(ids))

    def erase(self, ids: Ids) -> int:
        """Forgets rows, optimizer values and counts, wherever they are. Returns how many had a row."""
        return sum(self._erase(np.unique(part)) for part in self.pieces(ids))

    def restore(self, ids: Ids, rows: Rows, slots: Rows, counts: Counts, stamps: Counts, ticks: Counts) -> None:
        """Puts back rows: a small table into DRAM, a larger one into the store, until training asks for its rows."""
        wanted = (self.native.size() + len(ids)) * self.row_bytes
        if self.rows_outside == 0 and wanted <= self.budget.kept_bytes:
            self.know(ids)
            self.budget.ask(self, wanted)
            self.native.restore(ids, rows, slots, counts, stamps, ticks)
            return
        if len(np.unique(ids)) != len(ids):
            raise ValueError("ids: an id stands there twice")
        for part in self.slices(len(ids)):
            order = np.argsort(ids[part], kind="stable")
            mine = ids[part][order]
            at = stamps[part][order]
            values = rows[part][order], slots[part][order]
            records = self.native.encode(*values, counts[part][order], at, ticks[part][order])
            self._restore_outside(mine, records, at)

    def restore_counts(self, ids: Ids, counts: Counts) -> None:
        """Puts back counts of ids without a row; 0 removes a count."""
        for part in self.slices(len(ids)):
            mine, values = ids[part], counts[part]
            has_row = self.know(mine)
            self.native.restore_counts(mine[~has_row], values[~has_row])
            lost = mine[(values == 0) & ~has_row & (self.native.has_row(mine) == 0)]
            if len(lost) and not self.store.is_empty:
                # A record that stays in the store would bring the count back.
                self.store.erase(self.number, lost, np.zeros(len(lost), np.uint32))
                self._note(lost)

    def restore_removed(self, ids: Ids, stamps: Counts) -> None:
        """Puts back the erasures of ids; those that have a row are left out."""
        for part in self.slices(len(ids)):
            has_row = self.know(ids[part])
            self.native.restore_removed(ids[part][~has_row], stamps[part][~has_row])

    def know(self, ids: Ids) -> NDArray[np.bool_]:
        """Brings what the store has of ids without a row. Returns which of `ids` have a row in the store alone."""
        self._spill_bare_if_many()
        unknown, _ = self.native.unknown(ids, False)
        found = self.store.read(self.number, unknown, self.record_bytes)
        self._take_bare(found)
        return np.isin(ids, found.row_ids)

    @property
    def piece_rows(self) -> int:
        """The rows that are moved or exported at once."""
        return max(1, min(_PIECE_BYTES, max(self.budget.dram_bytes // 8, 4096)) // self.record_bytes)

    def slices(self, n: int) -> Iterator[slice]:
        """Divides n entries into parts, each a bounded piece of work."""
        rows = self.piece_rows
        return (slice(start, start + rows) for start in range(0, n, rows))

    def pieces(self, ids: Ids) -> Iterator[Ids]:
        """Divides ids into parts, each a bounded piece of work."""
        return (ids[part] for part in self.slices(len(ids)))

    def bring(self, ids: Ids, staged: Staged | None = None) -> None:
        """Brings the rows of ids to DRAM, where they stay until the next batch begins."""
        self._spill_bare_if_many()
        unknown, rowless = self.native.unknown(ids, True)
        if rowless == 0:
            return
        if self._make_room(ids, rowless):
            unknown, _ = self.native.unknown(ids, True)
        if staged is not None and staged.found is not None and len(unknown):
            found = staged.found.among(np.setdiff1d(unknown, np.concatenate([np.empty(0, np.int64), *staged.stale])))
            self._take_in(found)
            self.traffic.fetched_ahead += len(found.row_ids)
            unknown, _ = self.native.unknown(ids, True)
        if len(unknown):
            found = self.store.read(self.number, unknown, self.record_bytes)
            self._take_in(found)
            self.traffic.fetched_late += len(found.row_ids)

    def _take_in(self, found: Found) -> None:
        self.native.bring(found.row_ids, found.records)
        self.rows_outside -= len(found.row_ids)
        self.native.settle(found.absent)
        self._take_bare(found)

    def _take_bare(self, found: Found) -> None:
        removed = np.where(found.removed > self.forgotten, found.removed, np.uint32(0))
        self.native.bring_bare(found.bare_ids, found.counts, found.waiting, removed)
        self.waiting_outside -= int((found.counts > 0).sum())
        self.native.settle(found.bare_ids[(found.counts == 0) & (removed == 0)])

    def beside(self, ids: Ids) -> tuple[Ids, Rows] | tuple[None, None]:
        """Returns ids (k,) and rows (k, D) of those that have a row in the store alone; None where none has."""
        if self.rows_outside == 0:
            return None, None
        unknown, _ = self.native.unknown(ids, False)
        found = self.store.read(self.number, unknown, self.record_bytes)
        return found.row_ids, self.unpack(found.records)[0]

    def unpack(self, records: NDArray[np.uint8]) -> tuple[Rows, Rows, Counts, Counts, Counts]:
        """Returns rows (n, D), optimizer values (n, S), counts, stamps and ticks (n,) of records (n, record_bytes)."""
        words = [(name, "<u4") for name in ("count", "stamp", "tick")]
        values = [("row", "<f4", (self.dim,)), ("slots", "<f4", (self.slots,))]
        parts = records.view(np.dtype([*words, *values])).reshape(-1)
        row, slots, count, stamp, tick = (
            np.ascontiguousarray(parts[name]) for name in ("row", "slots", "count", "stamp", "tick")
        )
        return row, slots, count, stamp, tick

    def _used_bytes(self, more_rows: int = 0) -> int:
        return (self.native.size() + more_rows) * self.row_bytes + self.native.bare_size() * _BARE_BYTES

    def _make_room(self, ids: Ids, rowless: int) -> bool:
        """Makes room for `rowless` more rows, which may be brought or created. Returns whether any row left for it."""
        wanted = self._used_bytes(rowless)
        self.budget.ask(self, wanted)
        if wanted <= self.share_bytes:
            return False
        self._leave(wanted - self.share_bytes)
        if self._used_bytes(rowless) <= self.share_bytes:
            return True
        # Rows that are held for earlier lookups may leave too: code that needs them brings them again.
        self.native.begin()
        _, rowless = self.native.unknown(ids, True)
        self._leave(self._used_bytes(rowless) - self.share_bytes)
        self._spill_bare()
        _, rowless = self.native.unknown(ids, True)
        if self._used_bytes(rowless) > self.share_bytes:
            rows = self.native.held() + rowless
            raise ConfigError(
                f"dram_bytes: table {self.name!r} may take {self.share_bytes:,} of {self.budget.dram_bytes:,} bytes, "
                f"and one batch has {rows:,} ids of it, which take {rows * self.row_bytes:,}; give more dram_bytes, "
                "or lower training.batch_size",
                field="training.dram_bytes",
            )
        return True

    def _leave(self, surplus_bytes: int) -> None:
        rows = -(-surplus_bytes // self.row_bytes) + int(self.share_bytes * _LEAVE_SHARE) // self.row_bytes
        for piece in self.pieces(self.native.coldest(max(0, rows))):
            records, stamps, written, dirty = self.native.pack(piece)
            new = dirty != 0
            if new.any():
                self._note(piece)
                self._write_rows(piece[new], records[new], stamps[new], written[new])
            self.native.let_go(piece)
            self.rows_outside += len(piece)
            self.traffic.left += len(piece)
            self.traffic.written += int(new.sum())

    def _write_rows(self, ids: Ids, records: NDArray[np.uint8], stamps: Counts, written: Counts) -> None:
        """Writes rows as `TrainingStore.write_rows` does, with their ticks when the table evicts."""
        ticks = self.unpack(records)[4] if self.native.evicts else None
        parts = None if ticks is None else self.native.parts_of(ids)
        self.store.write_rows(self.number, ids, records, stamps, written, parts, ticks)

    def _spill_bare_if_many(self) -> None:
        size = self.native.bare_size()
        if size * _BARE_BYTES > self.share_bytes * _BARE_SHARE:
            self.budget.ask(self, self._used_bytes() + size * _BARE_BYTES)
            if size * _BARE_BYTES > self.share_bytes * _BARE_SHARE:
                self._spill_bare()

    def _spill_bare(self) -> None:
        ids, counts, waiting, removed = self.native.pack_bare()
        for part in self.slices(len(ids)):
            self._note(ids[part])
            self.store.write_bare(self.number, ids[part], counts[part], waiting[part], removed[part])
        self.native.drop_bare()
        self.waiting_outside += int((counts > 0).sum())

    def _note(self, ids: Ids) -> None:
        """Marks what was read of these ids for the next batch as stale."""
        with self._staging:
            if self._staged is not None:
                self._staged.stale.append(ids)

    def _erase(self, ids: Ids) -> int:
        outside = ids[self.know(ids)]
        inside = ids[~np.isin(ids, outside)]
        written = self.native.written(inside)
        erased = self.native.erase(inside)
        if not self.store.is_empty:
            # Records of ids without a row are erased too: a count in the store would come back.
            self.store.erase(self.number, inside, written)
        if len(outside):
            found = self.store.read(self.number, outside, self.record_bytes)
            stamps = self.unpack(found.records)[3]
            none = np.zeros(len(found.row_ids), np.uint32)
            self.store.erase(self.number, found.row_ids, stamps)
            self.store.write_bare(self.number, found.row_ids, none, none, none + np.uint32(self.native.stamp))
            self.rows_outside -= len(found.row_ids)
        # Only now: reading ahead may begin at any moment, and these ids are not in DRAM meanwhile.
        self._note(ids)
        return erased + len(outside)

    def _restore_outside(self, ids: Ids, records: NDArray[np.uint8], stamps: Counts) -> None:
        here = self.native.has_row(ids) != 0
        if here.any():
            self.native.restore(ids[here], *self.unpack(records[here]))
        ids, records, stamps = ids[~here], records[~here], stamps[~here]
        has_row = self.know(ids)
        written = np.zeros(len(ids), np.uint32)
        if has_row.any():
            found = self.store.read(self.number, ids[has_row], self.record_bytes)
            written[has_row] = self.unpack(found.records)[3]
        self._write_rows(ids, records, stamps, written)
        self._note(ids)
        self.rows_outside += int((~has_row).sum())
        self.native.forget(ids)
