"""The background thread of a GPU's cache: fills it, admits ids that are asked for, reads use marks, follows the
snapshot that is served.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

from storage.errors import EmberlineError, StoreError
from storage.hbm.base_rows import SnapshotRows
from storage.hbm.filling import hottest
from storage.hbm.tier import HbmTier
from storage.tiers.arrays import Flags, Ids
from storage.tiers.hot_ids import HOT_IDS_HBM, load_hot_ids, save_hot_ids
from storage.tiers.tiered import TieredStore

_log = logging.getLogger(__name__)

_ROUND_S = 0.02
# Marks are read when each row of the cache could have been asked for this often since, or after a fixed time.
_MARKS_EVERY_ROWS = 20
_MARKS_EVERY_S = 10.0


class HbmWorker:
    """Runs the background thread of a tier, and begins to fill the GPU at once. An error never ends the thread."""

    def __init__(self, tier: HbmTier, store: TieredStore) -> None:
        self._tier = tier
        self._store = store
        self._wake = threading.Event()
        self._stopping = False
        self._filled = threading.Event()
        self._fillings = threading.Lock()
        self._filling: Iterator[tuple[int, Ids, Flags]] | None = self._hottest()
        self._marks_read = self._saved = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="emberline-hbm", daemon=True)
        self._thread.start()

    def refill(self) -> None:
        """Fills free room again; called for a tier whose size has changed."""
        with self._fillings:
            self._filled.clear()
            self._filling = self._hottest()
        self._wake.set()

    def wait_filled(self, timeout_s: float | None = None) -> bool:
        """Waits until the hottest rows of DRAM are on the GPU; returns False when the time runs out before."""
        return self._filled.wait(timeout_s)

    def close(self) -> None:
        """Ends the thread, and writes the list of what is on the GPU, for the next opening."""
        self._stopping = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._save()

    def _run(self) -> None:
        while not self._stopping:
            try:
                busy = self._round()
            except EmberlineError as error:
                _log.warning("a GPU's cache: %s", error)
                busy = False
            except Exception:
                _log.exception("a GPU's cache: a round of its upkeep failed")
                busy = False
                self._end_filling(self._filling)
            if not busy:
                self._wake.wait(_ROUND_S)
                self._wake.clear()

    def _round(self) -> bool:
        """Does one round of work; returns True when there is more to do at once."""
        tier = self._tier
        tier.prepare_asked()
        tier.settle()
        tier.admit_offers()
        if tier.replica is None:
            self._end_filling(self._filling)
            return False
        now = time.monotonic()
        if self._marks_are_due(now):
            self._marks_read = now
            tier.read_marks()
        if now - self._saved > self._store.limits.hot_ids_every_s:
            self._saved = now
            self._save()
        return self._fill()

    def _marks_are_due(self, now: float) -> bool:
        replica, counts = self._tier.replica, self._tier.counts
        slabs = [] if replica is None else replica.slabs
        waiting = [(counts.waiting(slab.members), slab.cache.capacity_rows) for slab in slabs]
        if any(count > rows * _MARKS_EVERY_ROWS for count, rows in waiting):
            return True
        return any(count for count, _ in waiting) and now - self._marks_read > _MARKS_EVERY_S

    def _save(self) -> None:
        if not self._filled.is_set():
            return  # the list of last time is more complete
        try:
            hot = self._tier.hot_ids(self._store.limits.hot_ids)
            if hot:
                save_hot_ids(self._store.ssd.path, hot, self._list)
        except StoreError as error:
            _log.warning("the next opening fills the GPU by the published frequencies: %s", error)

    @property
    def _list(self) -> str:
        """The name of the list of what was on the GPU last time."""
        name, sharing = f"{HOT_IDS_HBM}_{self._tier.device.info.index}", self._tier.sharing
        return name if sharing is None else sharing.list_name(name)

    def _fill(self) -> bool:
        """Fills one piece; returns True while there are more."""
        filling = self._filling
        if filling is None:
            return False
        try:
            table, ids, freq = next(filling)
        except (StopIteration, IndexError):  # IndexError: DRAM was released, as by a first budget
            self._end_filling(filling)
            return False
        # Rows that were on the GPU last time, and those that came in since, are not evicted for published ones.
        self._tier.fill(table, ids, freq)
        return True

    def _end_filling(self, filling: Iterator[tuple[int, Ids, Flags]] | None) -> None:
        """Ends the filling, unless another one was begun meanwhile."""
        with self._fillings:
            if self._filling is filling:
                self._filling = None
                self._filled.set()

    def _hottest(self) -> Iterator[tuple[int, Ids, Flags]]:
        store, rows = self._store, SnapshotRows(self._store)
        replica = self._tier.replica
        # No reference to the replica is kept: it may be replaced by one of another size meanwhile.
        groups = [] if replica is None else [(slab.members, slab.cache.capacity_rows) for slab in replica.slabs]
        del replica
        saved = load_hot_ids(store.ssd.path, store.limits.hot_ids, self._list)
        for table, spec in enumerate(store.tables):
            hot = saved.get(spec.name)
            if hot is not None:
                for piece in rows.pieces(table, hot.ids):
                    yield table, hot.ids[piece], hot.counts[piece]
        of_dram = hottest if self._tier.sharing is None else self._tier.sharing.hottest
        for members, capacity in groups:
            yield from of_dram(store.dram_cache, members, capacity)
