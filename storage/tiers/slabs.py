"""Divides a DRAM budget into one cache for the rows of each size; the tables of that size compete for its bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from storage._table import Cache, CacheTable
from storage.errors import StoreError
from storage.specs import TableSpec
from storage.tiers.dram import DramTier
from storage.tiers.planning.budget import INDEX_BYTES_PER_ROW, split_bytes
from storage.tiers.planning.forecast import Forecast, SlabCurve
from storage.tiers.recent_lookups import RecentLookups

# Room for rows that deltas add, beyond a quarter more rows than there are, before a slab has to grow for them.
_SPARE_ROWS = 1024
# A slab keeps this share of the budget, whatever its curve says: curves of rows that are not cached are guesses.
_LEAST_SHARE = 0.02
# How much of the budget one step of balancing moves, and how many more hits it must promise.
_STEP_SHARE = 0.05
_LEAST_GAIN = 0.001
# In a cache of fewer rows the fixed parts take most of the memory.
_LEAST_CAPACITY = 256
_PARTS = 8  # parts into which the cache cuts its sample
# A curve is scaled to the hits that were counted, by at most _MOST_ANCHORED, when at least _LEAST_FOUND rows were
# found and the share of misses is at least _LEAST_MISSES.
_LEAST_FOUND = 2000
_LEAST_MISSES = 0.002
_MOST_ANCHORED = 2.0


def slab_bytes(row_bytes: int, rows: int, tables: int) -> int:
    """Returns the bytes of DRAM for rows of one size, index included, without those of an empty slab (some 0.2 MiB)."""
    return Cache.bytes_of(row_bytes, rows, tables) - Cache.bytes_of(row_bytes, 0, tables)


class Slab:
    """Holds the cache of one row size. members: indices of its tables among the store's, in the cache's order."""

    def __init__(self, row_bytes: int, members: Sequence[int], tables: Sequence[TableSpec]) -> None:
        self.row_bytes = row_bytes
        self.members = tuple(members)
        self.names = tuple(tables[index].name for index in members)
        self.rows = sum(tables[index].rows for index in members)  # the rows that lookups may ask for
        self.dram_bytes = 0
        with _no_memory():
            self.cache = Cache(row_bytes, 0, len(self.members))
        self.tiers = [
            DramTier.over(self.cache, CacheTable(self.cache, number, tables[index].dim, tables[index].row_type))
            for number, index in enumerate(self.members)
        ]

    @property
    def needed_bytes(self) -> int:
        """The bytes that all of its rows would take."""
        return slab_bytes(self.row_bytes, self.rows, len(self.members))

    def rows_in(self, dram_bytes: int) -> int:
        """Returns how many rows so many bytes hold, at most as many as may be asked for and some to spare."""
        count = len(self.members)
        return min(
            Cache.capacity_for(self.row_bytes, dram_bytes + self.fixed_bytes, count), self.rows * 5 // 4 + _SPARE_ROWS
        )

    def give(self, dram_bytes: int) -> None:
        """Sets its budget; the coldest rows, which do not fit, are evicted before this returns."""
        self.dram_bytes = dram_bytes
        rows = self.rows_in(dram_bytes)
        if rows != self.cache.capacity_rows:
            with _no_memory():
                self.cache.resize(rows)

    @property
    def fixed_bytes(self) -> int:
        """The bytes that its cache takes without any row; they do not count against its budget."""
        return Cache.bytes_of(self.row_bytes, 0, len(self.members))

    @property
    def row_cost(self) -> float:
        """The bytes of its budget that a row takes, index included."""
        capacity = int(self.cache.capacity_rows)
        if capacity < _LEAST_CAPACITY:
            return float(self.row_bytes + INDEX_BYTES_PER_ROW)
        return slab_bytes(self.row_bytes, capacity, len(self.members)) / capacity

    def curve(self, counts: np.ndarray) -> SlabCurve:
        """Returns its present miss-ratio curve. counts: (T, 4), by table, of DRAM, SSD, absent, unresolved lookups."""
        rows, hits, parts = self.cache.curve_parts()
        parts = parts.reshape(_PARTS, len(rows))
        dram, ssd, absent, unresolved = counts.sum(0).tolist()
        found, asked = dram + ssd, dram + ssd + absent + unresolved
        if found > 0:
            # The cache counts lookups of ids without a row as hits; the curve leaves them out.
            hits, parts = (np.clip(1 - (1 - of) * asked / found, 0.0, 1.0) for of in (hits, parts))
        if len(rows) > 0 and rows[-1] < self.rows:
            # Rows that were not asked for recently are filled in by chance, and all rows answer everything.
            rows, hits = np.append(rows, self.rows), np.append(hits, 1.0)
            parts = np.hstack([parts, np.ones((len(parts), 1))])
        seen = dram / found if found >= _LEAST_FOUND else None
        capacity = int(self.cache.capacity_rows)
        return SlabCurve(
            self.names,
            self.row_bytes,
            self.row_cost,
            self.rows,
            found,
            rows,
            _anchored(rows, hits, capacity, seen),
            np.array([_anchored(rows, part, capacity, seen) for part in parts]),
        )


class Slabs:
    """Holds the slabs of all row sizes. Its methods name tables by their index in the store. Thread-safe."""

    def __init__(self, tables: Sequence[TableSpec], dram_bytes: int) -> None:
        members: dict[int, list[int]] = {}
        for index, spec in enumerate(tables):
            members.setdefault(spec.row_bytes, []).append(index)
        self.all = tuple(Slab(size, members[size], tables) for size in sorted(members))
        self._places = {index: (slab, n) for slab in self.all for n, index in enumerate(slab.members)}
        self.tiers = [slab.tiers[n] for slab, n in (self._places[index] for index in range(len(tables)))]
        self._sizes = threading.RLock()
        # How the budget is divided when not everything fits: by need at first.
        self._weights = [float(slab.needed_bytes) for slab in self.all]
        self.give(dram_bytes)

    def give(self, dram_bytes: int) -> None:
        """Divides a new budget. Slabs shrink before others grow, so that their sum never exceeds both budgets."""
        with self._sizes:
            self._total = dram_bytes
            shares = split_bytes([slab.needed_bytes for slab in self.all], self._weights, dram_bytes)
            self._give_each(shares)

    def forecast(self, recent: RecentLookups) -> Forecast:
        """Returns the forecast by the present curves and by what recent lookups found."""
        counts = recent.counts()
        return Forecast(tuple(slab.curve(counts[list(slab.members)]) for slab in self.all), tuple(recent.windows))

    def balance(self, forecast: Forecast) -> bool:
        """Moves some of the budget to where the curves promise more hits; returns False when nothing moved."""
        with self._sizes:
            return self._balance(forecast)

    def make_room(self, table: int, rows: int) -> bool:
        """Grows a table's slab for so many more rows, within the budget; returns whether they fit."""
        with self._sizes:
            slab, _ = self._places[table]
            if self.free_rows(table) < rows:
                slab.rows = max(slab.rows, slab.cache.size() + rows)
                self.give(self._total)
            return self.free_rows(table) >= rows

    def free_rows(self, table: int) -> int:
        """Returns how many more rows fit into a table's slab."""
        cache = self._places[table][0].cache
        return cache.capacity_rows - cache.size()

    def is_complete(self, table: int) -> bool:
        """Returns whether no row of a table was evicted since it was marked."""
        slab, number = self._places[table]
        return slab.cache.is_complete(number)

    def mark_complete(self, table: int) -> None:
        """Has the cache note from now on whether a row of the table is evicted."""
        slab, number = self._places[table]
        slab.cache.mark_complete(number)

    def evicted(self, table: int) -> int:
        """Returns how many rows of a table were evicted."""
        slab, number = self._places[table]
        return slab.cache.evicted_of(number)

    def memory_bytes(self) -> int:
        """Returns the bytes that the slabs take."""
        return sum(slab.cache.memory_bytes() for slab in self.all)

    def fixed_bytes(self) -> int:
        """Returns the bytes that the slabs take without any row; they do not count against the budget."""
        return sum(slab.fixed_bytes for slab in self.all)

    def _balance(self, forecast: Forecast) -> bool:
        now = [slab.dram_bytes for slab in self.all]
        total = sum(now)
        if len(self.all) < 2 or total == 0 or any(len(curve.curve_rows) == 0 for curve in forecast.slabs):
            return False
        best = forecast.split(total)
        if forecast.hit_rate_of(best) < forecast.hit_rate_of(now) + _LEAST_GAIN:
            return False
        least = int(total * _LEAST_SHARE)
        goal = [max(least, int(share)) for share in best]
        moved = sum(max(0, want - have) for want, have in zip(goal, now, strict=True))
        part = min(1.0, total * _STEP_SHARE / moved) if moved else 0.0
        shares = [have + int((want - have) * part) for want, have in zip(goal, now, strict=True)]
        over = max(0, sum(shares) - total)
        shares[int(np.argmax(shares))] -= over
        if shares == now:
            return False
        self._weights = [float(share) for share in shares]
        self._give_each(shares)
        return True

    def _give_each(self, shares: Sequence[int]) -> None:
        pairs = list(zip(self.all, shares, strict=True))
        for slab, share in sorted(pairs, key=lambda pair: pair[1] - pair[0].dram_bytes):
            slab.give(share)


def _anchored(rows: np.ndarray, hits: np.ndarray, capacity: int, seen: float | None) -> np.ndarray:
    """Scales the misses of a curve so that at the present capacity it gives the hit rate that was observed there."""
    if seen is None or len(rows) == 0:
        return hits
    said = float(np.interp(capacity, rows, hits))
    if said > 1 - _LEAST_MISSES or seen > 1 - _LEAST_MISSES:
        return hits
    return np.asarray(1 - (1 - hits) * min(_MOST_ANCHORED, max(1 / _MOST_ANCHORED, (1 - seen) / (1 - said))))


@contextmanager
def _no_memory() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise StoreError("the DRAM tier got no more memory from the system; lower dram_bytes") from error
