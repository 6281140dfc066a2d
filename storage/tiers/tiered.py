"""The tiered store: all tables of one model, overlays over DRAM over SSD.

SSD holds every row of the base. DRAM holds all of them, or the hottest that fit; then a miss is read from SSD on a
pool of threads, and what was read is offered to DRAM in the background. Staged deltas lie over the base as overlays,
each seen only by lookups whose mask shows it, until they are merged or discarded. What a lookup returns depends on its
mask alone, not on the budget, not on what is cached, and not on what is merged meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from storage._table import OverlayTable
from storage.errors import ConfigError, NotFound, StoreError
from storage.specs import LookupSpec, TableSpec
from storage.tiers.content import Content, caller_marker
from storage.tiers.dram import DramTier
from storage.tiers.dram_cache import DramCache
from storage.tiers.limits import StoreLimits
from storage.tiers.lookup_plan import LookupCounts, LookupPlan, LookupResult
from storage.tiers.merge import MERGE_STEPS, Merge
from storage.tiers.overlays import Overlay, Overlays, OverlayStats
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.promoter import Promoter, Promotion
from storage.tiers.source import DeltaSource, TableSource
from storage.tiers.ssd import SsdTier
from storage.tiers.staging import overlay_fingerprint, stage_delta
from storage.tiers.statistics import PlanLedger, StoreStats
from storage.tiers.warmup import refresh, warm

__all__ = [
    "MERGE_STEPS",
    "LookupCounts",
    "LookupPlan",
    "LookupResult",
    "OverlayStats",
    "StoreLimits",
    "StoreStats",
    "TieredStore",
]

# stage ("ssd" or "dram"), table, rows done, rows of the table
LoadProgress = Callable[[str, str, int, int], None]
# Entries that a dropped overlay gives up at a time.
_DROP_ENTRIES = 4096


class TieredStore:
    """Opened by `open`, filled by `load`, read through plans. Lookups take no lock.

    Overlays may come and go on any thread while plans look up. Staging, merging and markers may run beside each other.
    """

    def __init__(self, ssd: SsdTier, tables: Sequence[TableSpec], dram_bytes: int | None, limits: StoreLimits) -> None:
        self.tables = tuple(tables)
        self.ssd = ssd
        self.dram_bytes = dram_bytes
        self.limits = limits
        self.overlays = Overlays()
        self.overlay_tables: list[OverlayTable] = []
        self._rows: list[int] = []  # of the base
        self._numbers = {spec.name: index for index, spec in enumerate(self.tables)}
        self._content = Content(ssd, list(self._numbers))
        self._ssd_numbers = [self._content.numbers[name] for name in self._numbers]
        self._cache = DramCache(self.tables, dram_bytes, limits.negative_ids)
        self._build_overlay_tables()
        self._plans = PlanLedger()
        self._stage_lock = threading.Lock()
        self._merge_lock = threading.Lock()
        self._closed = False
        self.pool = ThreadPoolExecutor(limits.io_threads, thread_name_prefix="emberline-ssd")
        self.pending = threading.BoundedSemaphore(limits.pending_reads)
        self._promoter = Promoter(self._cache.install, depth=limits.promotion_depth)

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
        Raises StoreError when the folder is open elsewhere, ConfigError for tables that do not go together.
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
        return self._content.at

    @property
    def dram(self) -> list[DramTier]:
        """The DRAM tables, in the order of `tables`."""
        return self._cache.tiers

    def load(self, version: TableSource, progress: LoadProgress | None = None, *, gently: bool = False) -> None:
        """Puts a version's rows on SSD, unless a marker says that they are there, then fills DRAM, hottest first.

        SSD that holds the version with deltas merged on top is left as it is, and `at` says so; otherwise `at` is the
        version's snapshot then. gently: leaves processor and GIL to requests that other stores answer meanwhile.
        Not while plans exist. Interrupted, it is repeated from the table where it stopped.
        """
        if self._plans.any:
            raise StoreError("load: lookups were planned on this store already; open a new store for another version")
        self._check_tables(version)
        given = {spec.name: spec for spec in version.tables}
        pace = Pace() if gently else UNHURRIED
        self.tables = tuple(given[spec.name] for spec in self.tables)
        self._cache.forget_reads()
        self._content.load(version, None if progress is None else lambda *event: progress("ssd", *event), pace)
        self._cache.build(self.tables)
        for index, spec in enumerate(self.tables):
            self._cache.complete[index] = warm(
                self.dram[index],
                lambda name=spec.name: version.shards(name),  # type: ignore[misc]
                self._cache.capacity[index],
                None if progress is None else lambda done, s=spec: progress("dram", s.name, done, s.rows),  # type: ignore[misc]
            )
            refresh(self._cache, index, self._content.changed(spec.name), lambda ids, t=index: self._find(t, ids))  # type: ignore[misc]
        self._build_overlay_tables()

    def plan(self, features: Sequence[LookupSpec]) -> LookupPlan:
        """A plan for these features, for one thread at a time; its results keep their order."""
        entries: list[tuple[LookupSpec, int, int]] = []
        for spec in features:
            if spec.table not in self._numbers:
                raise ConfigError(
                    f"feature {spec.feature!r}: no table {spec.table!r} in {sorted(self._numbers)}",
                    field=f"features.{spec.feature}.table",
                )
            index = self._numbers[spec.table]
            entries.append((spec, index, self.tables[index].dim))
        self._check_open()
        counts = LookupCounts()
        plan = LookupPlan(self, entries, counts)
        self._plans.add(plan, counts)
        return plan

    def stage(self, delta: DeltaSource, *, spill: bool | None = None) -> int:
        """Puts a delta into an overlay of its own and returns the overlay's number; bit `number` of a mask shows it.

        Numbers rise and are never used twice, so a mask, an int of any size, means one thing forever, and it may go on
        showing overlays that were merged. What is staged later lies above what was staged before.
        spill: rows go to SSD and are served from there; None: when overlay_bytes would be passed.
        Raises CheckpointError for tables that are not here, ids that stand twice, and what the delta raises; StoreError
        when 63 overlays are staged or the disk fails. Nothing is staged then.
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
        """What every overlay holds, by number, oldest first."""
        return self.overlays.stats()

    def fingerprint(self, overlay: int, table: str) -> int:
        """Of the rows and removed ids of a table in an overlay (uint64), read back on the way that requests take."""
        if table not in self._numbers:
            raise NotFound(f"the store has no table {table!r}; it has {sorted(self._numbers)}")
        self._check_open()
        index = self._numbers[table]
        ids, _ = self.overlay_tables[index].ids(self.overlays.get(overlay).slot)
        entry = (LookupSpec(table, table, "none", 1), index, self.tables[index].dim)
        return overlay_fingerprint(LookupPlan(self, [entry], LookupCounts()), ids, 1 << overlay)

    def discard(self, overlay: int) -> None:
        """Drops an overlay that no mask in use shows; a later lookup whose mask shows it raises StoreError."""
        self._check_open()
        self.overlays.drop(self.overlays.get(overlay), self._clear, merged=False)

    def merge(
        self,
        overlay: int,
        *,
        at: str,
        markers: Mapping[str, str | None] | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        """Moves an overlay into SSD and DRAM and drops it; the store's base is snapshot `at` then.

        Only when every mask that may still be used shows it, as the oldest that is not merged: the caller's duty.
        markers: written (or, None, removed) in the same atomic step. on_step: called after each of MERGE_STEPS.
        Raises StoreError when the disk fails; the overlay stays, lookups are as before, and the call can be repeated.
        """
        with self._merge_lock:
            self._check_open()
            with self.overlays.merging(overlay) as merged:
                merge = Merge(merged, self.overlay_tables, self._ssd_numbers, self.ssd, self._content, self._cache)
                merge.run(at, markers or {}, self._drop_merged, on_step or (lambda _: None))
            for table, count in merge.gained.items():
                self._rows[table] += count

    def adopt(self, version: TableSource) -> None:
        """From now on SSD holds this version, whose rows must be those that it is `at`; nothing is read.

        The version's snapshot must be `at`, or what it `equals` must. Lookups may go on.
        Raises StoreError.
        """
        self._check_tables(version)
        with self._merge_lock:
            self._check_open()
            if self.at == "" or self.at not in (version.snapshot, version.equals):
                raise StoreError(
                    f"{version.path}: snapshot {version.snapshot} equals {version.equals}, but the store is at "
                    f"{self.at!r}; load it into a store of its own"
                )
            self._content.adopt(version)

    def holds(self, version: TableSource) -> bool:
        """Whether this version was loaded or adopted; deltas may have been merged since."""
        return self._content.holds(version)

    def changed(self, table: str) -> Iterator[np.ndarray]:
        """Ids (n,) of a table, ascending, that merges changed since the version was loaded or adopted."""
        return self._content.changed(table)

    def marker(self, name: str) -> str | None:
        """A durable word of the caller's, or None."""
        return self.ssd.marker(caller_marker(name))

    def set_markers(self, markers: Mapping[str, str | None]) -> None:
        """Writes the caller's words (None removes one) in one step, on the disk when the call returns."""
        self.ssd.set_markers({caller_marker(name): value for name, value in markers.items()})

    def is_complete(self, table: int) -> bool:
        """Whether DRAM holds every row of a table, so that what it does not find is absent."""
        return self._cache.complete[table]

    def known_absent(self, table: int, ids: np.ndarray) -> np.ndarray:
        """(n,) bool: which ids are remembered as being in no tier."""
        return self._cache.negative[table].contains(ids)

    def read(self, table: int, ids: np.ndarray, overlay: Overlay | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows and found flags of ids from SSD, those that an overlay spilled or those of the base.

        What was found in the base is offered to DRAM, what was not is remembered.
        """
        if overlay is not None:
            return self._read_spilled(table, ids, overlay)
        generation = self._cache.generation
        rows, found = self._find(table, ids)
        hits = found.view(np.bool_)
        self._promoter.offer(Promotion(generation, table, ids[hits], rows[hits], ids[~hits]))
        return rows, found

    def drain(self) -> None:
        """Waits until the promotions offered so far are done."""
        self._promoter.drain()

    def stats(self) -> StoreStats:
        """Counts and sizes now."""
        counts = self._plans.total()
        return StoreStats(
            hits={"overlay": counts.overlay, "dram": counts.dram, "ssd": counts.ssd},
            absent=counts.absent,
            unresolved=counts.unresolved,
            rows={
                "overlay": sum(stats.rows for stats in self.overlay_stats().values()),
                "dram": sum(t.size() for t in self.dram),
                "ssd": sum(self._rows),
            },
            bytes={
                "overlay": sum(table.memory_bytes() for table in self.overlay_tables),
                "dram": self._cache.memory_bytes(),
                "ssd": self.ssd.size_bytes(),
            },
            promotions_dropped=self._promoter.dropped,
        )

    def close(self) -> None:
        """Ends the threads, releases the folder and the memory, when what is being staged or merged is done.

        Plans must not be used any more. Raises StoreError when the disk fails; the store is closed all the same.
        """
        with self._stage_lock, self._merge_lock:
            if self._closed:
                return
            self._closed = True
        self.pool.shutdown(wait=True, cancel_futures=True)
        self._promoter.close()
        try:
            self.ssd.close()
        finally:
            # Also when the disk fails: the memory goes, and the store is closed.
            self._plans.release()
            self._cache.release()
            self.overlay_tables = []

    def __enter__(self) -> TieredStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, table: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.ssd.find(self._ssd_numbers[table], ids, self.tables[table].dim)

    def _read_spilled(self, table: int, ids: np.ndarray, overlay: Overlay) -> tuple[np.ndarray, np.ndarray]:
        rows, found = self.ssd.find(overlay.spills[table], ids, self.tables[table].dim)
        gone = np.flatnonzero(found == 0)
        if len(gone):
            # It left the view before its rows went, so what is not in the view was merged, and the base has them.
            view = self.overlays.view
            if overlay in view.live or view.discarded >> overlay.number & 1:
                raise StoreError(
                    f"{self.ssd.path}: rows of overlay {overlay.number} are gone; it was discarded or lost"
                )
            rows[gone], found[gone] = self.read(table, ids[gone])
        return rows, found

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

    def _check_tables(self, version: TableSource) -> None:
        given = {spec.name: spec for spec in version.tables}
        for spec in self.tables:
            if spec.name not in given or given[spec.name].dim != spec.dim:
                raise StoreError(f"{version.path} has no table {spec.name!r} of dim {spec.dim}")

    def _build_overlay_tables(self) -> None:
        self.overlay_tables = [OverlayTable(spec.dim) for spec in self.tables]
        self._rows = [
            tier.size() if complete else spec.rows
            for tier, complete, spec in zip(self.dram, self._cache.complete, self.tables, strict=True)
        ]
