"""The tiered store holds all tables of one model: overlays are asked first, then DRAM, then SSD.

SSD holds every row of the base. DRAM holds all of them, or the hottest that fit; a miss is then read from SSD, and the
row read is offered to DRAM in the background. Staged deltas are overlays over the base. Only lookups whose mask shows
an overlay see it, until it is merged or discarded. The result of a lookup depends on its mask alone, not on the
budget, on what is cached, or on what is being merged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from storage._table import OverlayTable
from storage.errors import ConfigError, NotFound, StoreError
from storage.initializers import ABSENT_ZEROS
from storage.rows import RowCodec
from storage.specs import LookupSpec, TableSpec, check_absent
from storage.tiers.bounding import bounded
from storage.tiers.cold_reads import ColdReads
from storage.tiers.content import Content, caller_marker
from storage.tiers.counting import COUNTED, LookupCounts, LookupTotals
from storage.tiers.dram import DramTier
from storage.tiers.dram_cache import DramCache
from storage.tiers.filling import Filler, Progress, Rows
from storage.tiers.hot_rows import HotRows
from storage.tiers.integrity import check_integrity
from storage.tiers.limits import StoreLimits
from storage.tiers.listeners import SnapshotListeners
from storage.tiers.lookup_plan import LookupPlan, LookupResult
from storage.tiers.merge import MERGE_STEPS, Merge
from storage.tiers.overlays import Overlay, Overlays, OverlayStats
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.plan_ledger import PlanLedger
from storage.tiers.planning.budget import check_dram_bytes
from storage.tiers.planning.cost import LookupCosts
from storage.tiers.planning.forecast import Forecast
from storage.tiers.promoter import Promoter
from storage.tiers.recent_lookups import RecentLookups
from storage.tiers.row_plan import RowPlan
from storage.tiers.source import DeltaSource, TableSource, check_tables
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.staging import overlay_fingerprint, stage_delta
from storage.tiers.statistics import StoreStats, TableStats, store_stats
from storage.tiers.upkeep import Upkeep

_log = logging.getLogger(__name__)

__all__ = [
    "COUNTED",
    "MERGE_STEPS",
    "LookupCounts",
    "LookupPlan",
    "LookupResult",
    "OverlayStats",
    "StoreLimits",
    "StoreStats",
    "TableStats",
    "TieredStore",
]

# Takes a stage ("ssd" or "dram"), a table, its rows done and all its rows.
LoadProgress = Callable[[str, str, int, int], None]
FILLING = "filling DRAM"
# Entries of a dropped overlay that are removed in one call.
_DROP_ENTRIES = 4096
# A number of bytes that no budget reaches.
_NO_BOUND = 1 << 62


class TieredStore:
    """A store that `open` opens, `load` fills and plans read. Lookups take no lock.

    Any thread may stage, merge or discard overlays while plans look up. Staging, merging and markers may run at once.
    """

    def __init__(self, ssd: SsdTier, tables: Sequence[TableSpec], dram_bytes: int | None, limits: StoreLimits) -> None:
        self.tables = tuple(tables)
        self.ssd = ssd
        self.limits = limits
        self.overlays = Overlays()
        self.listeners = SnapshotListeners()
        self.overlay_tables: list[OverlayTable] = []
        self._rows: list[int] = []  # rows of each table of the base
        self._numbers = {spec.name: index for index, spec in enumerate(self.tables)}
        self._content = Content(ssd, list(self._numbers))
        self._ssd_numbers = [self._content.numbers[name] for name in self._numbers]
        self._dram_bytes = check_dram_bytes(dram_bytes)
        self._cache = DramCache(self.tables, dram_bytes, limits.negative_ids)
        self._build_overlay_tables()
        self._plans = PlanLedger(len(self.tables))
        self._lookups = RecentLookups(self._plans.total)
        self._version: TableSource | None = None
        #: The hot ids: those that DRAM is filled with, and those that are in it.
        self.hot = HotRows(ssd.path, limits.hot_ids, lambda: self._cache, self._lookups)
        self._stage_lock = threading.Lock()
        self._merge_lock = threading.Lock()
        self._budget_lock = threading.Lock()
        self._closed = self._ending = False
        self._promoter = Promoter(lambda promotion: self._cache.install(promotion), depth=limits.promotion_depth)
        self.cold_reads = ColdReads(ssd, self._ssd_numbers, self.overlays, lambda: self._cache, self._promoter)
        self._upkeep = Upkeep(
            {
                FILLING: (None, lambda: self._fill(Pace(alone=lambda: self.hot.is_awaited))),
                "balancing DRAM": (limits.balance_every_s, self.balance),
                "saving hot ids": (limits.hot_ids_every_s, self.save_hot_ids),
            }
        )

    @classmethod
    def open(
        cls,
        directory: Path | str,
        tables: Sequence[TableSpec],
        *,
        dram_bytes: int | None,
        limits: StoreLimits | None = None,
    ) -> TieredStore:
        """Opens or creates the store of one model in a folder of its own.

        dram_bytes: budget for all tables together; None means that everything is held in DRAM.
        Raises StoreError when the folder is open elsewhere, ConfigError when two tables have the same name.
        """
        limits = limits or StoreLimits()
        names = [spec.name for spec in tables]
        if len(set(names)) != len(names):
            raise ConfigError(f"tables: a name stands twice in {names}", field="tables")
        ssd = SsdTier.open(Path(directory), limits.ssd)
        try:
            return cls(ssd, tables, dram_bytes, limits)
        except BaseException:
            ssd.close()
            raise

    @property
    def at(self) -> str:
        """The snapshot that SSD holds, by its durable marker; "" before the first load and after a broken one."""
        self._content.refresh()
        return self._content.at

    @property
    def dram_bytes(self) -> int | None:
        """The bytes that the rows in DRAM may take, index included; None when every row is held."""
        return self._dram_bytes

    @property
    def dram_cache(self) -> DramCache:
        """The cache of the rows in DRAM. The first budget replaces it by another object."""
        return self._cache

    @property
    def dram(self) -> list[DramTier]:
        """The DRAM tables, in the order of `tables`."""
        return self._cache.tiers

    def load(
        self, version: TableSource, progress: LoadProgress | None = None, *, fill_timeout_s: float | None = None
    ) -> None:
        """Puts a version's rows on SSD, unless a marker says that they are there, then fills DRAM, hottest first.

        An SSD tier that holds the version with deltas merged on top is left as it is, and `at` names the merged
        snapshot; otherwise `at` becomes the version's snapshot. fill_timeout_s: how long to wait for DRAM, which is
        then filled while lookups run (`wait_filled`); None waits until it is filled. Raises StoreError once plans were
        made. A load that was interrupted continues with the table where it stopped when it is called again.
        """
        if self._plans.any or self.listeners.in_use:
            raise StoreError("load: lookups were planned on this store already; open a new store for another version")
        check_tables(self.tables, version)
        given = {spec.name: spec for spec in version.tables}
        self.tables = tuple(given[spec.name] for spec in self.tables)
        self._cache.forget_reads()
        self._content.load(version, None if progress is None else lambda *event: progress("ssd", *event))
        self._cache.build(self.tables)
        self.hot.load()
        self._build_overlay_tables()
        self._version = version
        if fill_timeout_s is None:
            self._fill(UNHURRIED, None if progress is None else lambda *event: progress("dram", *event))
            self._upkeep.start()
        else:
            self._upkeep.start()
            self._upkeep.wake(FILLING)
            self._upkeep.wait(FILLING, fill_timeout_s)

    def plan(self, features: Sequence[LookupSpec]) -> LookupPlan:
        """Makes a plan for these features, which one thread at a time uses; its results keep their order."""
        entries: list[tuple[LookupSpec, int, int]] = []
        for spec in features:
            if spec.table not in self._numbers:
                raise ConfigError(
                    f"feature {spec.feature!r}: no table {spec.table!r} in {sorted(self._numbers)}",
                    field=f"features.{spec.feature}.table",
                )
            index = self._numbers[spec.table]
            if spec.absent is not None:
                check_absent(
                    spec.absent,
                    self.tables[index].row_type,
                    what=f"feature {spec.feature!r}",
                    field=f"features.{spec.feature}.absent",
                )
            entries.append((spec, index, self.tables[index].dim))
        self._check_open()
        return self._plans.made(lambda totals: LookupPlan(self, entries, totals))

    def plan_rows(self) -> RowPlan:
        """Makes a plan that finds rows that a GPU did not have; one thread at a time uses it."""
        self._check_open()
        return self._plans.made(lambda totals: RowPlan(self, totals))

    def stage(self, delta: DeltaSource, *, spill: bool | None = None) -> int:
        """Puts a delta into an overlay of its own and returns the overlay's number; bit `number` of a mask shows it.

        Numbers rise and are never used twice, so a mask, an int of any size, means one thing forever, and it may go on
        showing overlays that were merged. An overlay that is staged later lies above earlier ones.
        spill: whether rows go to SSD and are served from there; None: when overlay_bytes would be exceeded.
        Raises CheckpointError for tables that are not here and ids that stand twice, StoreError when 63 overlays are
        staged or the disk fails, and whatever the delta raises. Nothing is staged then.
        """
        with self._stage_lock:
            self._check_open()
            overlay = self.overlays.reserve(delta.snapshot)
            try:
                taken = sum(stats.bytes for stats in self.overlay_stats().values())
                left = self.limits.overlay_bytes - taken
                stage_delta(delta, overlay, self._numbers, self.overlay_tables, self.ssd, spill=spill, bytes_left=left)
            except BaseException:
                self.overlays.drop(overlay, self._clear, merged=False)
                raise
            self.overlays.show(overlay)
            return overlay.number

    def overlay_stats(self) -> dict[int, OverlayStats]:
        """Returns what every overlay holds, by number, oldest first."""
        return self.overlays.stats()

    def fingerprint(self, overlay: int, table: str) -> int:
        """Returns a uint64 fingerprint of an overlay's rows and removed ids of a table, read as requests read them."""
        if table not in self._numbers:
            raise NotFound(f"the store has no table {table!r}; it has {sorted(self._numbers)}")
        self._check_open()
        index = self._numbers[table]
        ids, _ = self.overlay_tables[index].ids(self.overlays.get(overlay).slot)
        entry = (LookupSpec(table, table, "none", 1, ABSENT_ZEROS), index, self.tables[index].dim)
        plan = LookupPlan(self, [entry], LookupTotals.of(len(self.tables)))
        codec = RowCodec(self.tables[index].row_type, self.tables[index].dim)
        return overlay_fingerprint(plan, ids, 1 << overlay, codec)

    def prepare(self, mask: int) -> None:
        """Prepares the listeners to answer for a mask, before it is used. Raises StoreError for an impossible mask."""
        self.listeners.prepare(mask)

    def discard(self, overlay: int) -> None:
        """Drops an overlay that no mask in use shows. A later lookup whose mask shows it raises StoreError."""
        self._check_open()
        with self.overlays.discarding(overlay) as going, self.listeners.retiring(going, merged=False):
            self.overlays.drop(going, self._clear, merged=False)

    def merge(
        self,
        overlay: int,
        *,
        at: str,
        markers: Mapping[str, str | None] | None = None,
        on_step: Callable[[str], None] | None = None,
        hurry: Callable[[], bool] | None = None,
    ) -> None:
        """Moves an overlay into SSD and DRAM and drops it; the store's base is snapshot `at` then.

        The caller sees to it that every mask that may still be used shows it, as the oldest that is not merged.
        markers: written (or, None, removed) in the same atomic step. on_step: called after each of MERGE_STEPS.
        hurry: called repeatedly; while it returns False, the merge leaves nearly all of the processor to requests.
        Raises StoreError when the disk fails; the overlay stays, lookups are as before, and the call can be repeated.
        """
        with self._merge_lock:
            self._check_open()
            # Before the base changes, because the snapshots of listeners build on it.
            with self.overlays.merging(overlay) as merged, self.listeners.retiring(merged, merged=True):
                pace = Pace(hurry=None if hurry is None else lambda: self._ending or hurry())
                merge = Merge(
                    merged, self.overlay_tables, self._ssd_numbers, self.ssd, self._content, self._cache, pace
                )
                merge.run(at, markers or {}, self._drop_merged, on_step or (lambda _: None))
            for table, count in merge.gained.items():
                self._rows[table] += count

    def adopt(self, version: TableSource) -> None:
        """Records that SSD holds this version, whose rows must be those that it is `at`; nothing is read.

        The version's snapshot, or the one that it `equals`, must be `at`; else StoreError is raised. Lookups may go on.
        """
        check_tables(self.tables, version)
        with self._merge_lock:
            self._check_open()
            if self.at == "" or self.at not in (version.snapshot, version.equals):
                raise StoreError(
                    f"{version.path}: snapshot {version.snapshot} equals {version.equals}, but the store is at "
                    f"{self.at!r}; load it into a store of its own"
                )
            # The order matters: filling from the earlier version's files must see that the version was replaced, or
            # that its reads are stale, before the list of the ids in which those files differ from SSD is emptied.
            self._version = version
            self._cache.forget_reads()
            self._content.adopt(version)
        self._upkeep.wake(FILLING)

    def holds(self, version: TableSource) -> bool:
        """Returns whether this version was loaded or adopted; deltas may have been merged since."""
        return self._content.holds(version)

    def changed(self, table: str) -> Iterator[np.ndarray]:
        """Yields ids (n,) of a table, ascending, that merges changed since the version was loaded or adopted."""
        return self._content.changed(table)

    def marker(self, name: str) -> str | None:
        """Returns a durable text that the caller has set under this name, or None."""
        return self.ssd.marker(caller_marker(name))

    def set_markers(self, markers: Mapping[str, str | None]) -> None:
        """Writes the caller's texts (None removes one) in one step; they are on the disk when the call returns."""
        self.ssd.set_markers({caller_marker(name): value for name, value in markers.items()})

    def is_complete(self, table: int) -> bool:
        """Returns whether DRAM holds every row of a table, so that an id that it does not find is absent."""
        return self._cache.is_complete(table)

    def drain(self) -> None:
        """Waits until the promotions offered so far are done."""
        self._promoter.drain()

    def stats(self) -> StoreStats:
        """Returns counts and sizes as they are now. Raises StoreError when the store is closed."""
        self._check_open()
        try:
            now = store_stats(
                self.tables,
                self.overlay_tables,
                self._cache,
                overlay_rows=sum(stats.rows for stats in self.overlay_stats().values()),
                base_rows=self._rows,
                held=self.listeners.held(),
                ssd_bytes=self.ssd.size_bytes(),
                dropped=self._promoter.dropped,
            )
        except IndexError:  # it was closed meanwhile
            raise StoreError("the store is closed") from None
        return now.of_lookups(self._plans.total())

    def costs(self) -> LookupCosts:
        """Returns how long the lookups until now took."""
        return self._plans.total().costs

    def forecast(self) -> Forecast | None:
        """Returns what other budgets would give by recent lookups; None without a budget: no lookup is sampled then."""
        slabs = self._cache.slabs
        return None if slabs is None else slabs.forecast(self._lookups)

    def dram_of_late(self) -> tuple[DramCache, RecentLookups]:
        """Returns the DRAM cache and what lookups found there since the budget was changed, for `budget_report`."""
        return self._cache, self._lookups

    def slab_bytes(self) -> list[int]:
        """Returns the budget's bytes for each row size, in the order of `forecast().slabs`; empty without a budget."""
        slabs = self._cache.slabs
        return [] if slabs is None else [slab.dram_bytes for slab in slabs.all]

    def set_dram_bytes(self, dram_bytes: int | None) -> None:
        """Changes the budget while lookups run; None: as many bytes as all rows take.

        Rows that do not fit any more, the coldest, are evicted before it returns. New room is filled in the background
        (`wait_filled`). The first budget of a store that had none briefly needs memory for both caches.
        Raises ConfigError, and StoreError when there is no memory.
        """
        check_dram_bytes(dram_bytes)
        with self._budget_lock:
            self._check_open()
            if self._cache.slabs is not None:
                self._cache.set_dram_bytes(_NO_BOUND if dram_bytes is None else dram_bytes)
            elif dram_bytes is not None:
                self._bound(dram_bytes)
            self._dram_bytes = dram_bytes
            self._lookups.restart()
        self._upkeep.wake(FILLING)

    def wait_filled(self, timeout_s: float | None = None) -> bool:
        """Waits until the room that a larger budget gave is filled; returns False when the time runs out before."""
        return self._upkeep.wait(FILLING, timeout_s)

    def balance(self) -> bool:
        """Moves a part of the budget between row sizes to where it brings more hits; returns False if nothing moved."""
        with self._budget_lock:
            if self._closed or self._cache.slabs is None:
                return False
            self._lookups.fade()
            return self._cache.slabs.balance(self._cache.slabs.forecast(self._lookups))

    def save_hot_ids(self) -> None:
        """Saves the list of the ids in DRAM for the next opening. Raises StoreError."""
        with self._budget_lock:
            if self._version is not None and not self._closed:
                self.hot.save()

    def check_integrity(self) -> None:
        """Raises a StoreError that says what is broken: an index, or a row in DRAM that differs from SSD's. Slow."""
        with self._merge_lock:
            self._check_open()
            check_integrity(self._cache, self.overlay_tables, self._find)

    def close(self) -> None:
        """Waits for staging and merging to end, ends the threads, and releases the folder and the memory.

        Plans must not be used any more. Raises StoreError when the disk fails; the store is closed even then.
        """
        self._ending = True
        self.listeners.close_all()
        self._upkeep.close()
        with self._stage_lock, self._merge_lock:
            if self._closed:
                return
            try:
                self.save_hot_ids()
            except StoreError as error:
                _log.warning("the next opening warms up by the published frequencies: %s", error)
            self._closed = True
        self._promoter.close()
        try:
            self.ssd.close()
        finally:
            # Also when the disk fails: the memory is released, and the store is closed.
            with self._plans.lock:
                for plan in self._plans.each():
                    plan.release()
            self._cache.release()
            self.overlay_tables = []

    def __enter__(self) -> TieredStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, pace: Pace, progress: Progress | None = None) -> int:
        version, cache = self._version, self._cache
        if version is None:
            return 0

        def stopping() -> bool:
            return self._upkeep.stopping or self._version is not version or self._cache is not cache

        began = time.monotonic()
        filler = Filler(cache, version, self._content, Rows(self._find, self._walk), pace, stopping, progress)
        count = filler.run(*self.hot.begin())
        if not stopping():
            self.hot.end()
        _log.info("%s: %d rows came into DRAM in %.1f s", self.ssd.path, count, time.monotonic() - began)
        return count

    def _walk(self, table: int, cursor: int, limit: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns the next rows of the base."""
        return self.ssd.export_batch(self._ssd_numbers[table], cursor, limit, self.tables[table].row_bytes)

    def _find(self, table: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns encoded rows and found flags of ids in the base."""
        return self.ssd.find(self._ssd_numbers[table], ids, self.tables[table].row_bytes)

    def _bound(self, dram_bytes: int) -> None:
        """Sets the first budget of a store: a bounded cache replaces the tables that every plan uses."""
        with self._merge_lock:  # nothing is written to them meanwhile
            before = self._cache
            after = bounded(before, dram_bytes, self.limits.negative_ids)
            with self._plans.lock:
                self._cache = after
                for plan in self._plans.each():
                    plan.bind()
        before.release()

    def _clear(self, overlay: Overlay) -> None:
        pace = Pace()
        for table in self.overlay_tables:
            while table.discard(overlay.slot, _DROP_ENTRIES):
                pace.step()
        for number in overlay.spills.values():
            self.ssd.clear(number)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _drop_merged(self, overlay: Overlay) -> None:
        self.overlays.drop(overlay, self._clear, merged=True)

    def _build_overlay_tables(self) -> None:
        self.overlay_tables = [OverlayTable(spec.dim, row_type=spec.row_type) for spec in self.tables]
        self._rows = [spec.rows for spec in self.tables]
