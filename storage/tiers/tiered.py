"""The tiered store: all tables of one model, DRAM over SSD.

SSD holds every row. DRAM holds all of them, or the hottest that fit; then a miss is read from SSD on a pool of
threads, and what was read is offered to DRAM in the background. What a lookup returns does not depend on the budget.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from storage.errors import ConfigError, StoreError
from storage.specs import LookupSpec, TableSpec
from storage.tiers.budget import split_budget
from storage.tiers.dram import DramTier
from storage.tiers.lookup_plan import LookupCounts, LookupPlan, LookupResult
from storage.tiers.negative import NegativeCache
from storage.tiers.promoter import Promoter, Promotion
from storage.tiers.source import DeltaSource, TableSource
from storage.tiers.ssd import SsdTier
from storage.tiers.ssd_options import SsdOptions
from storage.tiers.warmup import warm

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
# What `merge` calls on_step with, in order.
MERGE_STEPS = ("merge_file", "merge_ingest", "merge_dram", "merge_drop")
_TABLES_MARKER = "tables"


@dataclass(frozen=True)
class StoreLimits:
    """Bounds of a store beside its DRAM budget."""

    io_threads: int = 4
    pending_reads: int = 256
    promotion_depth: int = 256
    negative_ids: int = 1 << 18
    ssd: SsdOptions = field(default_factory=SsdOptions)
    overlay_bytes: int = 256 << 20


@dataclass(frozen=True)
class OverlayStats:
    """One overlay. rows, removed: ids by kind. bytes: of memory that it takes. spilled: its rows lie on SSD."""

    snapshot: str
    rows: int
    removed: int
    bytes: int
    spilled: bool


@dataclass(frozen=True)
class StoreStats:
    """Counts since the store was opened, and what lies where now. Keys of the dicts: "dram" and "ssd"."""

    hits: dict[str, int]
    absent: int
    unresolved: int
    rows: dict[str, int]
    bytes: dict[str, int]
    promotions_dropped: int


class TieredStore:
    """Opened by `open`, filled by `load`, read through plans. Reads take no lock."""

    def __init__(self, ssd: SsdTier, tables: Sequence[TableSpec], dram_bytes: int | None, limits: StoreLimits) -> None:
        self.tables = tuple(tables)
        self.ssd = ssd
        self.dram_bytes = dram_bytes
        self.limits = limits
        self.generation = 0
        self.pool = ThreadPoolExecutor(limits.io_threads, thread_name_prefix="emberline-ssd")
        self.pending = threading.BoundedSemaphore(limits.pending_reads)
        self._numbers = {spec.name: index for index, spec in enumerate(self.tables)}
        self._counts: list[LookupCounts] = []
        self._plans_lock = threading.Lock()
        self._closed = False
        self._build_dram()
        self._promoter = Promoter(self._install, depth=limits.promotion_depth)

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

    def load(self, version: TableSource, progress: LoadProgress | None = None) -> None:
        """Puts a version's rows on SSD, unless a marker says that they are there, then fills DRAM, hottest first.

        Not while plans exist. Interrupted, it is repeated from the table where it stopped.
        """
        if self._counts:
            raise StoreError("load: lookups were planned on this store already; open a new store for another version")
        given = {spec.name: spec for spec in version.tables}
        for spec in self.tables:
            if spec.name not in given or given[spec.name].dim != spec.dim:
                raise StoreError(f"{version.path} has no table {spec.name!r} of dim {spec.dim}")
        self.generation += 1
        self.tables = tuple(given[spec.name] for spec in self.tables)
        self._forget_other_tables()
        for spec in self.tables:
            self._load_ssd(version, spec, progress)
        self._build_dram()
        for index, spec in enumerate(self.tables):
            self._complete[index] = warm(
                self.dram[index],
                lambda name=spec.name: version.shards(name),  # type: ignore[misc]
                self._capacity[index],
                None if progress is None else lambda done, s=spec: progress("dram", s.name, done, s.rows),  # type: ignore[misc]
            )

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
        counts = LookupCounts()
        with self._plans_lock:
            self._counts.append(counts)
        return LookupPlan(self, entries, counts)

    @property
    def at(self) -> str:
        """The snapshot that SSD holds, by its durable marker; "" before the first load."""
        raise NotImplementedError

    def stage(self, delta: DeltaSource, *, spill: bool | None = None) -> int:
        """Puts a delta into an overlay of its own and returns the overlay's number; bit `number` of a mask shows it.

        Numbers rise and are never used twice, so a mask (any int) means one thing forever; a mask may name overlays that
        were merged. spill: rows go to SSD and are served from there; None: when overlay_bytes would be passed.
        Raises CheckpointError for tables that are not here, and what the delta raises; nothing is staged then.
        """
        raise NotImplementedError

    def overlay_stats(self) -> dict[int, OverlayStats]:
        """What every overlay holds, oldest first."""
        raise NotImplementedError

    def fingerprint(self, overlay: int, table: str) -> int:
        """Of the rows and removed ids of a table in an overlay, read back on the way that lookups take."""
        raise NotImplementedError

    def discard(self, overlay: int) -> None:
        """Drops an overlay that no mask shows any more; a lookup whose mask names it later raises StoreError."""
        raise NotImplementedError

    def merge(
        self,
        overlay: int,
        *,
        at: str,
        markers: Mapping[str, str | None] | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        """Moves an overlay into SSD and DRAM and drops it; the store's base is snapshot `at` then.

        Only when every mask that may still be used shows it, as the oldest that is not merged: that is the caller's duty.
        markers: written (or, None, removed) in the same atomic step. on_step: called after each of MERGE_STEPS.
        Raises StoreError when the disk fails; the overlay stays and the call can be repeated.
        """
        raise NotImplementedError

    def adopt(self, version: TableSource) -> None:
        """Takes what SSD holds for the content of a version that is the same rows; nothing is read.

        The version's snapshot, or the one that its manifest `equals`, must be `at`. Raises StoreError.
        """
        raise NotImplementedError

    def marker(self, name: str) -> str | None:
        """A durable word of the caller's, or None."""
        raise NotImplementedError

    def set_markers(self, markers: Mapping[str, str | None]) -> None:
        """Writes the caller's words (None removes one) in one step, on the disk when the call returns."""
        raise NotImplementedError

    def is_complete(self, table: int) -> bool:
        """Whether DRAM holds every row of a table, so that what it does not find is absent."""
        return self._complete[table]

    def known_absent(self, table: int, ids: np.ndarray) -> np.ndarray:
        """(n,) bool: which ids are remembered as being in no tier."""
        return self._negative[table].contains(ids)

    def read(self, table: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and found flags of ids from SSD; what was found is offered to DRAM, what was not is remembered."""
        generation = self.generation
        rows, found = self.ssd.find(self._ssd_numbers[table], ids, self.tables[table].dim)
        hits = found.view(np.bool_)
        self._promoter.offer(Promotion(generation, table, ids[hits], rows[hits], ids[~hits]))
        return rows, found

    def drain(self) -> None:
        """Waits until the promotions offered so far are done."""
        self._promoter.drain()

    def stats(self) -> StoreStats:
        """Counts and sizes now."""
        with self._plans_lock:
            counts = list(self._counts)
        return StoreStats(
            hits={"dram": sum(c.dram for c in counts), "ssd": sum(c.ssd for c in counts)},
            absent=sum(c.absent for c in counts),
            unresolved=sum(c.unresolved for c in counts),
            rows={"dram": sum(t.size() for t in self.dram), "ssd": sum(spec.rows for spec in self.tables)},
            bytes={"dram": sum(t.memory_bytes() for t in self.dram), "ssd": self.ssd.size_bytes()},
            promotions_dropped=self._promoter.dropped,
        )

    def close(self) -> None:
        """Ends the threads and releases the folder. Plans must not be used any more."""
        if self._closed:
            return
        self._closed = True
        self.pool.shutdown(wait=True, cancel_futures=True)
        self._promoter.close()
        self.ssd.close()

    def __enter__(self) -> TieredStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build_dram(self) -> None:
        self._capacity = split_budget(self.tables, self.dram_bytes)
        self.dram = [
            DramTier(spec.dim, capacity_rows=capacity or 0)
            for spec, capacity in zip(self.tables, self._capacity, strict=True)
        ]
        for table, spec, capacity in zip(self.dram, self.tables, self._capacity, strict=True):
            if capacity is None:
                table.reserve(spec.rows)
        self._complete = [False] * len(self.tables)
        share = max(1, self.limits.negative_ids // max(1, len(self.tables)))
        # A table that DRAM holds whole answers for absent ids itself.
        self._negative = [NegativeCache(64 if capacity is None else share) for capacity in self._capacity]
        self._ssd_numbers = self._numbered()

    def _install(self, promotion: Promotion) -> None:
        if promotion.generation != self.generation:
            return
        if len(promotion.ids):
            self.dram[promotion.table].insert_and_evict(promotion.ids, promotion.rows)
        self._negative[promotion.table].add(promotion.absent)

    def _numbered(self) -> list[int]:
        # A table keeps its number on SSD for as long as the folder lives, whatever order a model names its tables in.
        known: dict[str, int] = json.loads(self.ssd.marker(_TABLES_MARKER) or "{}")
        fresh = [spec.name for spec in self.tables if spec.name not in known]
        if fresh:
            for name in fresh:
                known[name] = max(known.values(), default=-1) + 1
            self.ssd.set_marker(_TABLES_MARKER, json.dumps(known))
        return [known[spec.name] for spec in self.tables]

    def _forget_other_tables(self) -> None:
        known: dict[str, int] = json.loads(self.ssd.marker(_TABLES_MARKER) or "{}")
        for name, number in known.items():
            if name not in self._numbers:
                self.ssd.set_marker(f"content.{name}", None)
                self.ssd.clear(number)

    def _load_ssd(self, version: TableSource, spec: TableSpec, progress: LoadProgress | None) -> None:
        marker = f"content.{spec.name}"
        content = f"{spec.dim}:{version.table_digest(spec.name)}"
        if self.ssd.marker(marker) == content:
            return
        number = self._ssd_numbers[self._numbers[spec.name]]
        self.ssd.set_marker(marker, None)
        self.ssd.clear(number)
        self.ssd.bulk_load(
            number,
            ((shard.ids, shard.rows) for shard in version.shards(spec.name)),
            None if progress is None else lambda done: progress("ssd", spec.name, done, spec.rows),
        )
        self.ssd.set_marker(marker, content)
