"""Makes a store of one large table in DRAM with a GPU over it, and deltas of a chosen number of rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.tier_session import TierSession
from benchmarks.traffic import expected_codes
from loadtest.popularity import zipf
from storage.checkpoint.tables import Shard
from storage.hbm.gpus import gpus_of
from storage.hbm.replica import bytes_of
from storage.hbm.tier import HbmTier
from storage.specs import TableSpec
from storage.tiers.tiered import StoreLimits, TieredStore

Array = NDArray[np.int64]

TABLE = "t"
# Shares of the free memory on the host, and on the GPU.
_OF_HOST, _OF_GPU = 0.5, 0.8
_INDEX_BYTES = 32
# Rows that are made once and inserted again under other ids: no lookup can tell the difference.
_BLOCK = 1 << 15
_SHARD = 1 << 16
_SCATTER = 2_654_435_761
_FILL_S = 240.0


def fitting_table(wanted: int, row_bytes: int, host_free: int, gpu_free: int, gpu_share: float) -> int:
    """Returns the rows of a table: as wanted, or as many as fit on the host with `gpu_share` of them on the GPU."""
    of_host = int(host_free * _OF_HOST) // (row_bytes + _INDEX_BYTES)
    each = bytes_of(row_bytes, 1 << 20) / (1 << 20)
    return max(1, min(wanted, of_host, int(gpu_free * _OF_GPU / (each * gpu_share))))


class TierWorld:
    """A table with ids 0 to rows - 1; rank r of a popularity is id r * _SCATTER modulo rows. A context manager.

    fill_s: seconds until DRAM and the GPU were filled.
    """

    def __init__(
        self, bench: Bench, name: str, dim: int, wanted: int, *, gpu_share: float, popularity: str, spare: int = 0
    ) -> None:
        """gpu_share: share of the rows on the GPU. spare: rows of deltas that must fit beside them."""
        self.bench, self.dim = bench, dim
        self.driver = bench.gpu.driver
        row_bytes = 4 * dim
        free = self.driver.memory().free
        self.rows = fitting_table(wanted, row_bytes, bench.host_bytes, free, gpu_share)
        self.capacity = int(self.rows * gpu_share) + spare
        self.popularity = zipf(self.rows) if popularity == "zipf" else None
        began = time.monotonic()
        specs = [TableSpec(TABLE, dim, "fp32", rows=self.rows + 16 * spare)]
        limits = StoreLimits(overlay_bytes=max(256 << 20, 4 * spare * (row_bytes + 64)))
        self.store = TieredStore.open(bench.run.work / name, specs, dram_bytes=None, limits=limits)
        try:
            self._fill_dram()
            self.tier: HbmTier = gpus_of(self.store).open(self.driver, bytes_of(row_bytes, self.capacity))
            self.is_filled = gpus_of(self.store).wait_filled(_FILL_S)
        except BaseException:
            self.store.close()
            raise
        self.fill_s = time.monotonic() - began

    def __enter__(self) -> TierWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def sessions(self, count: int, bags: int, length: int) -> list[TierSession]:
        """Returns the lookups of `count` sessions."""
        return [TierSession(self.driver, self.store, self.tier, bags, length) for _ in range(count)]

    def ids(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count,) ids by the popularity."""
        if self.popularity is None:
            return rng.integers(0, self.rows, count)
        return self.popularity.ranks(rng, count).astype(np.int64) * _SCATTER % self.rows

    def delta(self, rows: int, step: int) -> MadeDelta:
        """Returns new rows for evenly spread ids; their values tell the step."""
        ids = np.arange(rows, dtype=np.int64) * (self.rows // rows)
        return MadeDelta(ids, self.dim, step)

    def _fill_dram(self) -> None:
        """Fills DRAM directly, with the use counts that training would have left."""
        rng = np.random.default_rng(3)
        block = (rng.standard_normal((_BLOCK, self.dim)) * 0.1).astype(np.float32)
        codes = None if self.popularity is None else expected_codes(self.popularity)
        tier = self.store.dram[0]
        tier.reserve(self.rows)
        inverse = pow(_SCATTER, -1, self.rows)
        for start in range(0, self.rows, _BLOCK):
            ids = np.arange(start, min(start + _BLOCK, self.rows), dtype=np.int64)
            # Ordered by rank: _SCATTER is a prime, so there is one rank for each id.
            freq = None if codes is None else codes[ids * inverse % self.rows]
            tier.insert_or_assign(ids, block[: len(ids)], freq)


class MadeDelta:
    """A delta in which every value of every row is `step`; see storage.tiers.source.DeltaSource."""

    def __init__(self, ids: Array, dim: int, step: int) -> None:
        """ids: ascending."""
        self.ids = ids
        self.path = Path(f"delta-{step}")
        self.snapshot = f"{step:032x}"
        self.tables = (TableSpec(TABLE, dim, "fp32", rows=len(ids)),)
        self._row = np.full((1, dim), float(step), np.float32)

    def shards(self, table: str) -> Iterator[Shard]:
        """See DeltaSource."""
        for start in range(0, len(self.ids), _SHARD):
            ids = self.ids[start : start + _SHARD]
            yield Shard(ids, np.repeat(self._row, len(ids), axis=0), np.ones(len(ids), np.uint8))

    def removed(self, table: str) -> Array:
        """See DeltaSource."""
        return np.empty(0, np.int64)
