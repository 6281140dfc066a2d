"""The HBM tier of a store on one GPU caches the rows that are asked for most; a row that it has is always right.

The host decides what is on the GPU (`GpuCache`), `publisher` brings it there, and `visibility` says for which snapshots
it is valid. Lookups on the GPU wait for nothing; the host looks up the rows that they miss and offers them here.

No lookup gets a row of another snapshot, for these reasons. The base has the rows of one snapshot, B. A difference for
snapshot M is announced only when every id in which the two may differ, and that is on the GPU, has an entry under M's
virtual tables; and from the moment that it is begun no such id is admitted. So a lookup for M finds M's row, or
nothing, and B's row is M's for every other id. (An entry of a difference never moves within the index, or a lookup
could miss it and go on to the base.) The base becomes M's in three steps: no session is given B any more and all
sessions of B come out; the base's entries take over M's rows; M's lookups search the base alone, and M's entries are
removed. A session in between finds M's row either way. An overlay that is merged or discarded leaves the GPU first
(`retire`).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

import numpy as np

from storage.errors import ConfigError, DeviceError, DeviceLost, DeviceOutOfMemory, StoreError
from storage.hbm.base_rows import DIFFERENCE_TIMEOUT_S, SnapshotRows
from storage.hbm.base_switch import SETTLE_AFTER_S, SwitchBackoff
from storage.hbm.device import Device
from storage.hbm.differences import Differences
from storage.hbm.offers import Offers
from storage.hbm.publisher import Publisher
from storage.hbm.readers import Turns
from storage.hbm.replica import MOST_DIFFERENCES, GpuSlab, Replica
from storage.hbm.statistics import HbmStats, TierCounts
from storage.hbm.visibility import Difference, Reader, View, can_be_shown, live_mask
from storage.tiers.arrays import Encoded, Flags, Ids
from storage.tiers.dram_cache import DramCache
from storage.tiers.hot_ids import HotIds
from storage.tiers.overlays import Overlay
from storage.tiers.tiered import TieredStore

_log = logging.getLogger(__name__)


class TierSharing(Protocol):
    """The hook of a GPU that shares rows with others (`storage.hbm.sharing`)."""

    @property
    def place(self) -> tuple[int, int]:
        """The number of GPUs that share rows, and this one's part among them: its marks leave out other parts."""

    def offered(self) -> Iterator[tuple[int, Ids]]:
        """Yields, by table, ids that may be admitted in addition to the tier's own offers."""

    def hottest(self, cache: DramCache, tables: Sequence[int], rows: int) -> Iterator[tuple[int, Ids, Flags]]:
        """Replaces `filling.hottest`."""

    def list_name(self, name: str) -> str:
        """Returns the name that replaces the name of a list of hot ids."""


class HbmTier:
    """The cache of rows on one GPU. Thread-safe.

    `offers` holds ids that sessions asked for. The base's snapshot is replaced by another one when no session has asked
    for it for `settle_after_s`. `sharing` is the hook of a GPU that shares rows with others; None where it does not.
    """

    def __init__(self, store: TieredStore, device: Device, hbm_bytes: int) -> None:
        """Allocates the cache. hbm_bytes: the bytes that rows, index and marks may take on the GPU.

        A cache of the least size, a few rows, may take more. Raises ConfigError, DeviceError.
        """
        if hbm_bytes <= 0:
            raise ConfigError(f"hbm_bytes: expected 1 or more, got {hbm_bytes}", field="hbm_bytes")
        self.device = device
        self.hbm_bytes = hbm_bytes
        self.trouble = ""
        self.settle_after_s = SETTLE_AFTER_S
        self._backoff = SwitchBackoff()
        self.counts = TierCounts(len(store.tables))
        self._store = store
        self._rows = SnapshotRows(store)
        self._lock = threading.RLock()
        self._generation = 0
        self._turns = Turns()
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._readers_lock = threading.Lock()
        self.offers = Offers()
        self._asked: int | None = None
        self.sharing: TierSharing | None = None
        self._last_stats: HbmStats | None = None
        device.enter_thread()
        device.load_kernels()
        replica = Replica(device, store.tables, hbm_bytes)
        widest = max(slab.stride for slab in replica.slabs)
        self._publisher = Publisher(device, self._turns, widest, hbm_bytes)
        self._brought = Differences(self._rows, self._publisher)
        base = sum(1 << number for number, merged in store.listeners.retiring_now.items() if merged)
        self._view: View | None = View(replica, base)

    # Sessions call the methods below.

    def reader(self) -> Reader:
        """Returns a reader for one session."""
        reader = Reader(self._turns.new(), self._store.overlays, lambda: self._view, self._ask)
        with self._readers_lock:  # a change of the GPU holds the tier's lock, for as long as sessions are inside
            self._readers.add(reader)
        return reader

    def tell(self, lookups: np.ndarray, misses: np.ndarray, wanted: Sequence[tuple[int, Ids]]) -> None:
        """Counts a batch and offers the ids that it missed. Never waits; ids that cannot be remembered are dropped.

        lookups, misses: (T,) occurrences by table, and those that missed. wanted: by table, ids that missed.
        """
        self.counts.add(lookups, misses)
        self.counts.age(lookups, misses)
        self.offers.put(wanted)

    # The store calls the methods below.

    @property
    def replica(self) -> Replica | None:
        """The replica; None when the GPU was given up, or the tier closed."""
        view = self._view
        return None if view is None else view.replica

    def is_prepared(self, mask: int) -> bool:
        """Returns whether lookups with this mask find what is on the GPU."""
        view, overlays = self._view, self._store.overlays.view
        return view is not None and can_be_shown(mask, overlays) and view.find(mask, live_mask(overlays)) is not None

    def prepare(self, mask: int) -> bool:
        """Brings the rows in which a snapshot differs to the GPU; returns True when the GPU can answer for it then.

        Call it before the snapshot is served, so that it finds its rows from the first lookup on. Raises StoreError for
        a mask that shows what was discarded.
        """
        with self._changing() as view:
            if view is None:
                return False
            overlays = self._store.overlays.view
            overlays.slots(mask)  # raises for a mask that cannot be shown
            live = live_mask(overlays)
            if any(bool(mask >> number & 1) != merged for number, merged in self._store.listeners.retiring_now.items()):
                return False  # it is not in use any more
            if view.find(mask, live) is not None:
                return True
            if view.base is not None and all(slab.cache.size() == 0 for slab in view.replica.slabs):
                self._generation += 1
                self._view = View(view.replica, mask)
                return True
            number = self._free_number(view)
            if number is None or view.base is None:
                return False
            differing = tuple(each for each in overlays.live if (view.base ^ mask) >> each.number & 1)
            self._generation += 1
            try:
                entries = self._brought.bring(view.replica, mask, number, differing)
            except StoreError:
                self._brought.clear(view.replica, number)
                raise
            view = self._view
            if view is None:
                return False
            self._brought.keep_room(view.replica)
            added = Difference(mask, number, differing, entries)
            self._view = replace(view, differences=(*view.differences, added))
            return True
        return False

    def retire(self, overlay: Overlay, *, merged: bool) -> None:
        """Handles an overlay that from now on is in every snapshot, or in none.

        Call it before the overlay is merged, or leaves the store's view.
        """
        with self._changing() as view:
            # Rows that were looked up before, possibly in tables that have changed since, must not come in any more.
            self._generation += 1
            if view is None:
                return
            assert view.base is not None
            bit = 1 << overlay.number
            if bool(view.base & bit) != merged:
                others = [each for each in view.differences if bool(each.mask & bit) == merged]
                if others:
                    self._settle(max(others, key=lambda each: each.use.last))
                else:
                    for table in range(view.replica.base_tables):
                        self._erase(view.replica, table, self._rows.ids(table, [overlay]))
                    self._view = replace(view, base=view.base ^ bit)
            self._drop([each for each in self._differences() if bool(each.mask & bit) != merged])

    def settle(self) -> bool:
        """Makes the requested snapshot the base when the base has not been asked for recently; see `SwitchBackoff`."""
        now, live = time.monotonic(), live_mask(self._store.overlays.view)
        if self._backoff.next_base(self._view, live, now, self.settle_after_s) is None:
            return False
        others: list[int] = []
        with self._changing() as view:
            wanted = self._backoff.next_base(view, live, now, self.settle_after_s)
            if view is None or view.base is None or wanted is None:
                return False
            self._backoff.changed(view.base, wanted.mask, live)
            others = [
                each.mask
                for each in view.differences
                if each is not wanted and now - each.use.last < self.settle_after_s
            ]
            self._settle(wanted)
        for mask in others:
            # Snapshots that are in use as well become differences from the new base.
            with suppress(StoreError):
                self.prepare(mask)
        return True

    def prepare_asked(self) -> bool:
        """Prepares the snapshot that a session last asked for and did not get."""
        mask, self._asked = self._asked, None
        if mask is None:
            return False
        with suppress(StoreError):
            return self.prepare(mask)
        return False  # it was discarded meanwhile

    def admit_offers(self) -> int:
        """Admits missed ids that are asked for more often than those they would evict; returns how many came in."""
        offered = [] if self.sharing is None else list(self.sharing.offered())
        offered += [(table, np.unique(ids)) for table, ids in self.offers.take()]
        return sum(self.install(table, ids) for table, ids in offered)

    def count_uses(self, table: int, ids: Ids) -> None:
        """Counts one use of each id that is on the GPU, as often as it comes."""
        with self._lock:
            if self._view is not None:
                self._view.replica.slab(table).cache.use(table, ids)

    def fill(self, table: int, ids: Ids, freq: Flags) -> int:
        """Installs ids as `install` does, into free room alone."""
        with self._lock:
            view = self._view
            if view is None:
                return 0
            cache = view.replica.slab(table).cache
            fresh = np.flatnonzero(cache.find(table, ids) == 0)[: cache.free()]
        return self.install(table, ids[fresh], freq[fresh])

    def install(self, table: int, ids: Ids, freq: Flags | None = None) -> int:
        """Offers ids to the cache, with the rows that the base's snapshot has; returns how many came in.

        freq: (n,) known use counts, as in every tier.
        """
        admitted = 0
        for piece in self._rows.pieces(table, ids):
            offered, counts = ids[piece], None if freq is None else freq[piece]
            with self._lock:
                view, generation = self._view, self._generation
                if view is None or view.base is None:
                    continue
                base = view.base
                if counts is None:
                    # Look up only the rows of ids that the policy would take.
                    offered = offered[view.replica.slab(table).cache.ask(table, offered)]
                # The replica may be replaced by one of another size meanwhile.
                del view
            if len(offered) == 0:
                continue
            try:
                # Rows that are not yet in DRAM come with a later offer.
                rows, found = self._rows.find(base, table, offered, 0.0)
            except StoreError:
                continue  # closed, or the base's snapshot has changed meanwhile
            known = None if counts is None else counts[found]
            admitted += self._install(table, generation, offered[found], rows, known)
        return admitted

    def read_marks(self) -> None:
        """Reports to the policy which rows lookups used since the last call."""
        with self._changing() as view:
            if view is None:
                return
            most = self._publisher.buffer_bytes
            place = () if self.sharing is None else self.sharing.place
            for slab in view.replica.slabs:
                marks = np.empty(slab.uses.nbytes, np.uint8)
                for start in range(0, len(marks), most):
                    part = slab.uses[start : start + most]
                    marks[start : start + most] = self._publisher.read(part, zero_after=part)
                slab.cache.note_uses(marks, view.replica.use_every, view.replica.base_tables, *place)
                lookups, hits = self.counts.passed(slab.members)
                slab.cache.pass_lookups(lookups, hits)

    def hot_ids(self, most: int) -> dict[str, HotIds]:
        """Returns the ids on the GPU by name of the table, hottest first, about `most` ids together at most."""
        with self._changing() as view:
            if view is None:
                return {}
            tables = view.replica.tables
            return {tables[table].name: HotIds(ids, counts) for table, ids, counts in view.replica.hot_ids(most)}
        return {}

    def has(self, table: str, ids: Ids) -> np.ndarray:
        """Returns which ids (n,) of a table have an entry on the GPU, (n,): a row, or that they have none."""
        with self._changing() as view:
            if view is not None:
                index = next(number for number, spec in enumerate(view.replica.tables) if spec.name == table)
                cache = view.replica.slab(index).cache
                return cache.contains_any(index, view.replica.base_tables, np.ascontiguousarray(ids, np.int64))
        return np.zeros(len(ids), np.bool_)

    def resize(self, hbm_bytes: int) -> None:
        """Changes the size while lookups run. The hottest rows stay.

        Old and new are both on the GPU meanwhile where there is memory for both; otherwise lookups go to the host until
        the new one is filled. Raises ConfigError, DeviceError; without memory for the new one the GPU is given up.
        """
        if hbm_bytes <= 0:
            raise ConfigError(f"hbm_bytes: expected 1 or more, got {hbm_bytes}", field="hbm_bytes")
        if self._view is None:
            raise DeviceError(f"{self.device.info}: its cache is closed{': ' * bool(self.trouble)}{self.trouble}")
        with self._changing(passing=True) as view:
            if view is None:
                return  # it was given up just now
            self._generation += 1
            hot = list(view.replica.hot_ids())
            base, tables = view.base or 0, view.replica.tables
            fresh: Replica | None = None
            with suppress(DeviceOutOfMemory):
                fresh = Replica(self.device, tables, hbm_bytes)
            if fresh is None:  # what the attempt took is free again
                self._drop_view()
                view = None
                self._come_out()
                fresh = Replica(self.device, tables, hbm_bytes)
            self.hbm_bytes = hbm_bytes
            self._brought.keep_room(fresh)
            for table, ids, counts in hot:
                slab = fresh.slab(table)
                room = min(len(ids), slab.cache.free())
                for piece in self._rows.pieces(table, ids[:room]):
                    rows, found = self._rows.find(base, table, ids[piece], DIFFERENCE_TIMEOUT_S)
                    self._insert(slab, table, ids[piece][found], rows, counts[piece][found])
            if view is not None:
                self.counts.let_go(view.replica)
            self._view = View(fresh, base)
            self._come_out()

    def stats(self) -> HbmStats:
        """Returns counts and sizes; while the GPU is being changed, those of a moment ago."""
        last = self._last_stats
        if not self._lock.acquire(timeout=-1 if last is None else 0.02):
            assert last is not None
            return last
        try:
            self._last_stats = last = self.counts.stats(self._view)
            return last
        finally:
            self._lock.release()

    def check_integrity(self) -> None:
        """Compares the GPU with the host, row by row. Raises StoreError that says what is wrong. Slow."""
        from storage.hbm.integrity import check_replica

        with self._changing() as view:
            if view is not None and view.base is not None:
                check_replica(view, self._publisher, self._rows)

    def close(self) -> None:
        """Frees the GPU's memory when no session is inside; sessions go to the host from this call on."""
        with self._lock:
            self._drop_view()
            with suppress(DeviceError):
                self._come_out()
            self._publisher.close()

    # The lock is held in the methods below, except in `_ask` and at the beginning of `_changing`.

    def _ask(self, mask: int) -> None:
        self._asked = mask

    def _come_out(self) -> None:
        """Waits until no session uses a view older than the current one, and none keeps it."""
        self._turns.wait()
        self._forget()

    def _forget(self) -> None:
        with self._readers_lock:
            readers = list(self._readers)
        for reader in readers:
            reader.forget()

    @contextmanager
    def _changing(self, *, passing: bool = False) -> Iterator[View | None]:
        """Yields the view, under the lock. A GPU that fails is given up. passing: errors are raised to the caller."""
        with self._lock:
            if self._view is not None:
                try:
                    self.device.enter_thread()
                except DeviceError as error:
                    self._give_up(error)
            try:
                yield self._view
            except DeviceError as error:
                self._give_up(error)
                if passing:
                    raise
            except (ConfigError, StoreError) as error:
                if self._view is None or self._view.base is None:
                    self._give_up(error)  # a change was only partly made
                raise
            except BaseException as error:
                # It is unknown how much of the change has taken effect.
                self._give_up(error)
                raise

    def _drop_view(self) -> None:
        if self._view is not None:
            self.counts.let_go(self._view.replica)
            self._view = None

    def _give_up(self, error: BaseException) -> None:
        if self.trouble:
            return
        self._drop_view()
        self.trouble = str(error) or type(error).__name__
        _log.error("%s: its cache of rows is given up: %s", self.device.info, self.trouble)
        if not isinstance(error, DeviceLost):
            self._publisher.drain()
        self._forget()

    def _install(self, table: int, generation: int, ids: Ids, rows: Encoded, freq: Flags | None) -> int:
        with self._changing() as view:
            if view is None or generation != self._generation or len(ids) == 0:
                return 0
            overlays = [overlay for each in view.differences for overlay in each.overlays]
            free = ~self._rows.covered(table, ids, overlays)
            slab = view.replica.slab(table)
            ids, rows, freq = ids[free], rows[free], None if freq is None else freq[free]
            admitted = 0
            for piece in slab.pieces(len(ids)):
                known = None if freq is None else freq[piece]
                count = slab.cache.offer(table, ids[piece], rows[piece], known, asked=freq is None)
                if count:
                    self._publisher.publish(slab)
                admitted += count
            self.counts.admitted[table] += admitted
            return admitted
        return 0

    def _insert(self, slab: GpuSlab, table: int, ids: Ids, rows: Encoded, freq: Flags) -> None:
        for piece in slab.pieces(len(ids)):
            slab.cache.insert(table, ids[piece], rows[piece], freq[piece])
            self._publisher.publish(slab)

    def _settle(self, difference: Difference) -> None:
        view = self._view
        assert view is not None
        replica = view.replica
        self._generation += 1
        others = [each for each in view.differences if each is not difference]
        self._view = View(replica, None, (difference,))
        self._turns.wait()
        self._brought.adopt(replica, difference.number, difference.overlays)
        self._view = View(replica, difference.mask, (), difference.use)
        for each in (difference, *others):
            self._brought.clear(replica, each.number, each.overlays)

    def _drop(self, differences: Sequence[Difference]) -> None:
        view = self._view
        if view is None or not differences:
            return
        self._generation += 1
        kept = tuple(each for each in view.differences if each not in differences)
        self._view = replace(view, differences=kept)
        # A session that uses them must not miss an entry that is being removed, and continue to the base.
        self._turns.wait()
        for each in differences:
            self._brought.clear(view.replica, each.number, each.overlays)

    def _erase(self, replica: Replica, table: int, ids: Ids) -> None:
        slab = replica.slab(table)
        if len(ids) and slab.cache.erase(table, ids):
            self._publisher.publish(slab)

    def _differences(self) -> tuple[Difference, ...]:
        return () if self._view is None else self._view.differences

    def _free_number(self, view: View) -> int | None:
        """Returns a free number for a difference; drops the one that was asked for least recently when none is free."""
        if len(view.differences) >= MOST_DIFFERENCES:
            oldest = min(view.differences, key=lambda each: each.use.latest)
            if time.monotonic() - oldest.use.latest < self.settle_after_s:
                return None
            self._drop([oldest])
        taken = {each.number for each in self._differences()}
        return next((number for number in range(1, MOST_DIFFERENCES + 1) if number not in taken), None)
