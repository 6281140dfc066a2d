"""Queries a tiered store of one table as a model with 26 features would, and counts its hits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.disk_world import MadeTable
from benchmarks.dram_world import FEATURES, rows_of_numbers
from benchmarks.traffic import BATCH, Array, Traffic
from storage.features import Jagged
from storage.specs import LookupSpec
from storage.tiers.tiered import TieredStore

SAMPLES = BATCH // FEATURES


@dataclass
class Window:
    """Counts of some lookups: hits in DRAM, and hits of the best static choice on the same lookups."""

    lookups: int = 0
    hits: int = 0
    static: int = 0

    @property
    def rate(self) -> float:
        """The share of hits in DRAM, in per cent."""
        return 100.0 * self.hits / self.lookups

    @property
    def static_rate(self) -> float:
        """The share of hits of the best static choice, in per cent."""
        return 100.0 * self.static / self.lookups


class Served:
    """Queries a store of one table as a model with 26 features would. A context manager."""

    def __init__(self, folder: Path, ids: Array, made: MadeTable, dram_bytes: int | None) -> None:
        self.folder, self.ids, self.dim = folder, ids, made.dim
        self.store = TieredStore.open(folder, made.tables, dram_bytes=dram_bytes)
        try:
            self.store.load(made)
            features = [LookupSpec(f"f{index}", made.name, "sum") for index in range(FEATURES)]
            self.plan = self.store.plan(features)
        except BaseException:
            self.store.close()
            raise
        self._offsets = np.arange(SAMPLES + 1)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @property
    def capacity(self) -> int:
        """The number of rows that DRAM holds now."""
        return self.store.stats().rows["dram"]

    def look_up(self, numbers: Array) -> tuple[int, int]:
        """Looks up a batch of row numbers (13,312,); returns the hits in DRAM, and the hits in the tiers below it."""
        parts = self.ids[numbers].reshape(FEATURES, SAMPLES)
        result = self.plan.lookup(SAMPLES, [Jagged(part, self._offsets) for part in parts])
        if result.counts.absent or result.counts.unresolved:
            raise AssertionError(f"rows that are there were not found: {result.counts}")
        return result.counts.dram, result.counts.ssd

    def check(self, numbers: Array) -> None:
        """Raises AssertionError unless a lookup of a batch returns the stored rows."""
        parts = self.ids[numbers].reshape(FEATURES, SAMPLES)
        result = self.plan.lookup(SAMPLES, [Jagged(part, self._offsets) for part in parts])
        for output, expected in zip(result.outputs, numbers.reshape(FEATURES, SAMPLES), strict=True):
            if not np.array_equal(output, rows_of_numbers(expected, self.dim)):
                raise AssertionError("a lookup gave other rows than were put in: the figures would mean nothing")

    def window(self, traffic: Traffic, batches: int) -> Window:
        """Looks up batches and counts hits. Waits for promotions after each batch."""
        window = Window()
        hottest = np.zeros(len(self.ids), np.bool_)
        hottest[traffic.numbering[: self.capacity]] = True
        for numbers in traffic.batches(batches):
            hits, below = self.look_up(numbers)
            self.store.drain()
            window.lookups += hits + below
            window.hits += hits
            window.static += int(hottest[numbers].sum())
        return window

    def fill(self, traffic: Traffic, lookups: int) -> None:
        """Looks up about `lookups` ids, and counts nothing."""
        left = -(-lookups // BATCH)
        while left > 0:
            for numbers in traffic.batches(min(left, 64)):
                self.look_up(numbers)
                self.store.drain()
            left -= 64
