"""Measures the host's work for a delta of rows that lie on a GPU, part by part; the GPU is a stub that does nothing.

The GPU is full before each delta, and each delta changes other rows.

python -m benchmarks.gpu.delta_parts --rows 4000000 --changed 1000000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.gpu.tier_world import TABLE, MadeDelta
from benchmarks.machine import machine_line
from storage._table import GpuCache
from storage.hbm.base_rows import SnapshotRows
from storage.hbm.device import Device, DeviceMemory, GpuInfo, KernelCall
from storage.hbm.gpus import gpus_of
from storage.hbm.publisher import Publisher
from storage.hbm.replica import bytes_of
from storage.hbm.tier import HbmTier
from storage.specs import TableSpec
from storage.tiers.tiered import StoreLimits, TieredStore

_BLOCK = 1 << 15
_TOTAL = 1 << 40
_WATCHED = [
    (SnapshotRows, "ids"),
    (SnapshotRows, "take"),
    (GpuCache, "find"),
    (GpuCache, "insert_absent"),
    (GpuCache, "adopt"),
    (GpuCache, "erase"),
    (GpuCache, "erase_table"),
    (GpuCache, "take_set"),
    (Publisher, "_put_rows"),
    (Publisher, "_put_stores"),
]


class IdleGpu:
    """A Device whose copies and kernels take no time and do nothing."""

    info = GpuInfo(0, "a GPU that does nothing", (9, 0), _TOTAL)

    def enter_thread(self) -> None:
        """Does nothing."""

    def pinned(self, size: int) -> torch.Tensor:
        """Returns ordinary host memory."""
        return torch.zeros(size, dtype=torch.uint8)

    def device(self, size: int) -> torch.Tensor:
        """Returns memory that nobody touches."""
        return torch.empty(size, dtype=torch.uint8)

    def new_stream(self, name: str) -> object:
        """Returns None."""

    def new_event(self, *, busy_wait: bool = False) -> object:
        """Returns None."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: object) -> None:
        """Does nothing."""

    def zero(self, buffer: torch.Tensor, stream: object) -> None:
        """Does nothing."""

    def load_kernels(self) -> None:
        """Does nothing."""

    def reach(self, other: Device) -> None:
        """Does nothing."""

    def kernel(self, call: KernelCall, stream: object) -> None:
        """Does nothing."""

    def record(self, event: object, stream: object) -> None:
        """Does nothing."""

    def wait(self, stream: object, event: object) -> None:
        """Does nothing."""

    def synchronize(self, event: object) -> None:
        """Does nothing."""

    def memory(self) -> DeviceMemory:
        """Returns that all memory is free."""
        return DeviceMemory(_TOTAL, _TOTAL, 0, 0)


class Parts:
    """Records the seconds that named calls took, by name."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Times the calls of `_WATCHED` while the context is open."""
        with ExitStack() as stack:
            for owner, name in _WATCHED:
                stack.enter_context(mock.patch.object(owner, name, self._timed(owner, name)))
            yield

    def _timed(self, owner: type, name: str) -> Callable[..., Any]:
        call, key = getattr(owner, name), f"{owner.__name__}.{name}"

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.took[key] = self.took.get(key, 0.0) + time.perf_counter() - began

        return timed


def main() -> None:
    """Prints medians with the least and the greatest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="that the GPU has room for")
    parser.add_argument("--changed", type=int, default=1_000_000, help="rows of the delta")
    parser.add_argument("--dim", type=int, default=64, help="float32 values of a row")
    parser.add_argument("--spare", type=int, default=0, help="rows that the GPU has room for beside those of the table")
    parser.add_argument("--repeats", type=int, default=9)
    chosen = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), chosen.rows, chosen.changed, chosen.dim, chosen.spare, chosen.repeats)


def _measure(folder: Path, rows: int, changed: int, dim: int, spare: int, repeats: int) -> None:
    total = rows if spare else rows + 2 * changed
    specs = [TableSpec(TABLE, dim, "fp32", rows=total + 16 * changed)]
    limits = StoreLimits(overlay_bytes=8 * changed * (4 * dim + 64))
    store = TieredStore.open(folder, specs, dram_bytes=None, limits=limits)
    try:
        block = np.random.default_rng(3).standard_normal((_BLOCK, dim)).astype(np.float32)
        store.dram[0].reserve(total)
        for start in range(0, total, _BLOCK):
            ids = np.arange(start, min(start + _BLOCK, total), dtype=np.int64)
            store.dram[0].insert_or_assign(ids, block[: len(ids)])
        tier = gpus_of(store).open(IdleGpu(), bytes_of(4 * dim, rows + spare))
        assert gpus_of(store).wait_filled(240)
        for worker in gpus_of(store)._workers.values():
            worker.close()
        tier.settle_after_s = 0.0
        print(f"{tier.stats().rows:,} rows on the GPU, {changed:,} x {4 * dim} B changed")
        took: dict[str, list[float]] = {}
        everything, random = np.arange(total, dtype=np.int64), np.random.default_rng(5)
        for step in range(repeats + 1):
            tier.fill(0, everything, np.full(total, 3, np.uint8))
            assert tier.replica is not None
            cache = tier.replica.slab(0).cache
            resident = everything[cache.find(0, everything) != 0]
            assert spare or cache.free() == 0, f"the GPU has room for {cache.free():,} rows more"
            ids = np.sort(random.choice(resident, changed, replace=False))
            number = store.stage(MadeDelta(ids, dim, step + 1), spill=False)
            parts = Parts()
            with parts.watched():
                began = time.perf_counter()
                _prepare(tier, 1 << number)
                prepared = time.perf_counter()
                _settle(tier)
                parts.took["settle"] = time.perf_counter() - prepared
                parts.took["prepare"] = prepared - began
            _prepare(tier, 0)
            _settle(tier)
            store.discard(number)
            if step == 0:  # memory is touched for the first time, and a full GPU has to evict rows
                print(f"the first delta: prepare {parts.took['prepare'] * 1e3:.0f} ms")
            for name, seconds in parts.took.items() if step > 0 else ():
                took.setdefault(name, []).append(seconds * 1e3)
        for name in sorted(took, key=lambda name: ("." in name, name)):
            print(f"{name}: {median(took[name]):.1f} ms, {min(took[name]):.1f} to {max(took[name]):.1f}")
    finally:
        store.close()


def _prepare(tier: HbmTier, mask: int) -> None:
    if not tier.prepare(mask):
        raise AssertionError(f"the GPU does not take mask {mask:b}: {tier.trouble}")


def _settle(tier: HbmTier) -> None:
    view = tier._view
    assert view is not None
    view.differences[0].use.last = time.monotonic()  # as if a session had asked for it
    if not tier.settle():
        raise AssertionError("the base did not take the difference over")


if __name__ == "__main__":
    main()
