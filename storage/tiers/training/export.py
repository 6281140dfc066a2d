"""Exports a tiered training table as a whole, from DRAM and store together, in bounded pieces.

Results are ordinary arrays; large ones are mapped files (spool.py). N rows, D dim, S optimizer values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from storage.tiers.training.keys import BARE, REMOVED_AT, WAITING_AT
from storage.tiers.training.rows import Counts, Ids, Rows, TieredRows
from storage.tiers.training.spool import Spool

_LAST_STAMP = 2**32 - 1
# The native table knows the changed counts of so many stamps; the store keeps no more.
_WAITING_STAMPS = 64
_Part = tuple[Ids, Rows, Rows, Counts, Counts, Counts]


class TieredTrainingTable(TieredRows):
    """Offers the methods of `TrainingTable` over both tiers. Ids (n,) are int64 and ascending in every result."""

    @property
    def stamp(self) -> int:
        """The open stamp, which changes carry."""
        return self.native.stamp

    def set_stamp(self, stamp: int) -> None:
        """Sets the stamp. Raises ValueError for a stamp below the table's own."""
        self.native.set_stamp(stamp)

    def advance(self) -> int:
        """Closes the stamp and returns it; later changes carry the next one."""
        closed = self.native.advance()
        self.store.forget(WAITING_AT, self.number, closed - _WAITING_STAMPS)
        return closed

    def set_tick(self, tick: int) -> None:
        """Sets the number that later uses carry. Raises ValueError for a smaller one than before."""
        self.native.set_tick(tick)

    def idle(self, part: int, unused: int, norm_after: int, norm_upto: int, norm: float) -> Ids:
        """Returns ids (n,) of idle rows in one of `TrainingTable.PARTS` parts, as `TrainingTable.idle` does.

        A row that was used last at tick `unused` or before is found in the store once: the caller erases it.
        """
        found = [self.native.idle(part, unused, norm_after, norm_upto, norm)]
        for ticks, ids in self.store.used_at(self.number, part, 0, unused):
            found.append(self._used_outside(ticks, ids)[0])
            self.store.forget_used(self.number, part, ticks, ids)
        for ticks, ids in self.store.used_at(self.number, part, max(unused, norm_after) + 1, norm_upto):
            mine, records = self._used_outside(ticks, ids)
            small = self.native.squares(self.unpack(records)[0]) < np.float32(norm) * np.float32(norm)
            found.append(mine[small])
            if not self.evicts_by_age:
                self.store.forget_used(self.number, part, ticks, ids)
        return np.unique(np.concatenate(found))

    def _used_outside(self, ticks: Counts, ids: Ids) -> tuple[Ids, np.ndarray]:
        """Returns ids (k,) and records of those that have a row in the store alone, used last at their tick."""
        found = self.store.read(self.number, self._only_outside(ids), self.record_bytes)
        if len(found.row_ids) == 0:
            return found.row_ids, found.records
        used = self.unpack(found.records)[4]
        places = np.minimum(np.searchsorted(found.row_ids, ids), len(used) - 1)
        valid = np.unique(places[(found.row_ids[places] == ids) & (used[places] == ticks)])
        return found.row_ids[valid], found.records[valid]

    def export_rows(self) -> _Part:
        """Returns ids (n,), rows (n, D), optimizer values (n, S), occurrences, stamps and ticks (n,) of all rows."""
        all_ids, spools = self._spool(np.int64), self._row_spools()
        for ids, *parts in self._all_rows():
            all_ids.append(ids)
            for spool, values in zip(spools, parts, strict=True):
                spool.append(values)
        rows, slots, counts, stamps, ticks = (spool.array() for spool in spools)
        return all_ids.array(), rows, slots, counts, stamps, ticks

    def export_ids(self, ids: Ids) -> tuple[Rows, Rows, Counts, Counts, Counts]:
        """Returns rows (n, D), optimizer values (n, S), occurrences (n,), stamps (n,) and ticks (n,) of ids (n,).

        Raises ValueError for an id without a row.
        """
        spools = self._row_spools()
        for piece in self.pieces(ids):
            for spool, values in zip(spools, self._rows_of(piece), strict=True):
                spool.append(values)
        rows, slots, counts, stamps, ticks = (spool.array() for spool in spools)
        return rows, slots, counts, stamps, ticks

    def export_counts(self) -> tuple[Ids, Counts]:
        """Returns ids (n,) that have no row yet, and their occurrences (n,)."""
        ids, counts = self.native.export_counts()
        if self.waiting_outside == 0:
            return ids, counts
        all_ids, all_counts = self._spool(np.int64), self._spool(np.uint32)
        all_ids.append(ids)
        all_counts.append(counts)
        for found, values in self.store.records(self.number):
            bare = np.fromiter((len(value) == BARE.itemsize for value in values), np.bool_, len(values))
            parts = np.frombuffer(b"".join(value for value, here in zip(values, bare, strict=True) if here), BARE)
            mine = found[bare]
            waits = (parts["count"] > 0) & np.isin(mine, self._only_outside(mine))
            all_ids.append(mine[waits])
            all_counts.append(parts["count"][waits])
        return _sorted(all_ids.array(), all_counts.array())

    def changed_since(self, stamp: int) -> Ids:
        """Returns ids (n,) of rows created, stepped or looked up in training after a stamp."""
        return self._with_outside(
            self.native.changed_since(stamp), self.store.rows_at(self.number, stamp + 1, _LAST_STAMP)
        )

    def expired(self, stamp: int) -> Ids:
        """Returns ids (n,) of rows that changed last at that stamp or before."""
        return self._with_outside(self.native.expired(stamp), self.store.rows_at(self.number, 0, stamp))

    def removed_since(self, stamp: int) -> Ids:
        """Returns ids (n,) that were erased after a stamp and have no row now."""
        return self._removed(stamp)[0]

    def removed(self) -> tuple[Ids, Counts]:
        """Returns ids (n,) that were erased and have no row now, and the stamps (n,) of their erasure."""
        return self._removed(0)

    def forget_removed(self, upto_stamp: int) -> None:
        """Forgets that ids were erased, for erasures at that stamp or before."""
        here = self.native.removed()[0]
        self.native.forget_removed(upto_stamp)
        if upto_stamp >= self.stamp:
            # Ids may still be erased at the open stamp, so the stamp alone does not say what to forget of it.
            # Ids that are brought back for that are forgotten before the next part, which may write them out again.
            for _, ids in self.store.removed_at(self.number, self.stamp, upto_stamp):
                self.know(ids)
                was_removed = np.isin(ids, here) | np.isin(ids, self.native.removed()[0])
                bare = np.unique(ids[(self.native.has_row(ids) == 0) & was_removed])
                self.store.erase(self.number, bare, np.zeros(len(bare), np.uint32))
                self._note(bare)
                self.native.forget_removed(upto_stamp)
        closed = min(upto_stamp, self.stamp - 1)
        self.forgotten = max(self.forgotten, closed)
        self.store.forget(REMOVED_AT, self.number, closed)

    def waiting_since(self, stamp: int) -> tuple[Ids, Counts]:
        """Returns ids (n,) without a row whose count changed after a stamp, and counts (n,).

        A count of 0 means that the id has a row now, or was erased. The stamp must be one of the last 64.
        """
        ids, counts = self.native.waiting_since(stamp)
        found: list[tuple[Ids, Counts]] = []
        for part, values in self.store.waiting_at(self.number, stamp + 1, _LAST_STAMP):
            outside = self.native.has_waited(part) == 0
            found.append((part[outside], values[outside]))
        if not found:
            return ids, counts
        others, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        # When an id is listed under several stamps, the last one is valid.
        last, places = np.unique(others[::-1], return_index=True)
        return _sorted(np.concatenate([ids, last]), np.concatenate([counts, values[::-1][places]]))

    def _removed(self, after: int) -> tuple[Ids, Counts]:
        ids, stamps = self.native.removed()
        newer = stamps > after
        found: list[tuple[Ids, Counts]] = [(ids[newer], stamps[newer])]
        for at, part in self.store.removed_at(self.number, max(after, self.forgotten) + 1, _LAST_STAMP):
            outside = self.store.read(self.number, self._only_outside(part), self.record_bytes)
            # An id may also be listed under earlier stamps that its record does not have any more.
            order = np.argsort(part, kind="stable")
            for place in order[np.isin(part[order], outside.bare_ids)]:
                record = np.searchsorted(outside.bare_ids, part[place])
                if outside.removed[record] == at[place]:
                    found.append((part[place : place + 1], at[place : place + 1]))
        return _sorted(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _only_outside(self, ids: Ids) -> Ids:
        """Returns the ids of which DRAM knows nothing, each once."""
        return self.native.unknown(np.ascontiguousarray(ids), False)[0]

    def _with_outside(self, ids: Ids, others: Iterable[Ids]) -> Ids:
        """Returns `ids` of rows in DRAM and those of `others` that have no row there, ascending."""
        spool = self._spool(np.int64)
        spool.append(ids)
        for part in others:
            spool.append(part[self.native.has_row(part) == 0])
        whole = spool.array()
        whole.sort()
        return whole

    def _all_rows(self) -> Iterator[_Part]:
        """Yields every row, ascending by id, in bounded parts."""
        inside = self.native.row_ids()
        for ids, records in self._outside_rows():
            while True:
                part = inside[: self.piece_rows]
                full = len(part) < len(inside) and len(part) > 0 and part[-1] < ids[-1]
                cut = part[-1] if full else ids[-1]
                mine, theirs = part[part <= cut], ids <= cut
                yield self._merged(mine, ids[theirs], records[theirs])
                inside, ids, records = inside[len(mine) :], ids[~theirs], records[~theirs]
                if not full:
                    break
        for piece in self.pieces(inside):
            yield piece, *self.native.export_ids(piece)

    def _merged(self, inside: Ids, outside: Ids, records: np.ndarray) -> _Part:
        ids = np.concatenate([inside, outside])
        order = np.argsort(ids, kind="stable")
        here, there = self.native.export_ids(inside), self.unpack(records)
        rows, slots, counts, stamps, ticks = (
            np.concatenate([mine, theirs])[order] for mine, theirs in zip(here, there, strict=True)
        )
        return ids[order], rows, slots, counts, stamps, ticks

    def _outside_rows(self) -> Iterator[tuple[Ids, np.ndarray]]:
        """Yields ids, ascending, and records of the rows that are in the store alone; no part is empty."""
        if self.rows_outside == 0:
            return
        size = self.record_bytes
        for found, values in self.store.records(self.number):
            rows = np.fromiter((len(value) == size for value in values), np.bool_, len(values))
            records = np.frombuffer(b"".join(value for value, row in zip(values, rows, strict=True) if row), np.uint8)
            ids = found[rows]
            outside = self.native.has_row(ids) == 0
            if outside.any():
                yield ids[outside], records.reshape(-1, size)[outside]

    def _rows_of(self, ids: Ids) -> tuple[Rows, Rows, Counts, Counts, Counts]:
        here = self.native.has_row(ids) != 0
        if here.all():
            return self.native.export_ids(ids)
        found = self.store.read(self.number, np.unique(ids[~here]), self.record_bytes)
        stray = np.setdiff1d(ids[~here], found.row_ids)
        if len(stray):
            raise ValueError(f"ids: id {stray[0]} has no row")
        places = np.searchsorted(found.row_ids, ids[~here])
        inside, outside = self.native.export_ids(ids[here]), self.unpack(found.records[places])
        parts = []
        for mine, theirs in zip(inside, outside, strict=True):
            whole = np.empty((len(ids), *mine.shape[1:]), mine.dtype)
            whole[here], whole[~here] = mine, theirs
            parts.append(whole)
        rows, slots, counts, stamps, ticks = parts
        return rows, slots, counts, stamps, ticks

    def _row_spools(self) -> list[Spool]:
        values = [self._spool(np.float32, (self.dim,)), self._spool(np.float32, (self.slots,))]
        return [*values, *(self._spool(np.uint32) for _ in range(3))]

    def _spool(self, dtype: type, tail: tuple[int, ...] = ()) -> Spool:
        return Spool(dtype, tail, folder=lambda: self.store.scratch)


def _sorted(ids: Ids, values: Counts) -> tuple[Ids, Counts]:
    order = np.argsort(ids, kind="stable")
    return ids[order], values[order]
