"""Claims: rows from SSD beside the disk's own random reads when cold, and beside plain RocksDB when warm.

Cold: every file's pages are dropped from the kernel's cache before each batch of 13,312 uniform ids, nearly all of them
on pages of their own. The limit is one 4 KiB read for each id with 32 under way, measured by fio where it is installed,
and by our own probe. Warm: everything was read before; one calling thread.

    python -m benchmarks.ssd            # 10 M rows of 128 bytes: about three minutes, 6 GB of disk
    python -m benchmarks.ssd --quick
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks._limits import random_reads
from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.disk_world import (
    BLOCK,
    DEPTH,
    MadeTable,
    drop_page_cache,
    fio_reads_per_second,
    has_fio,
    write_file,
)
from benchmarks.dram_world import rows_of_numbers
from benchmarks.gauge import QUIET_CORES_DISK
from benchmarks.measure import Contestant, per_second
from benchmarks.peers import PeerMissingError
from benchmarks.peers.databases import LmdbRows, RocksRows, fresh
from benchmarks.ssd_rows import SsdRows
from benchmarks.traffic import BATCH, Array, random_ids

DIM = 32
OF_DISK = 0.6
OVER_ROCKSDICT = 1.5
THOUSANDS = 1e-3
# The peer's cache limit while it is measured cold; the same as the store's own block cache.
_SMALL_CACHE = 64 << 20


class Rows(Protocol):
    """The interface of what is measured: rows of one table on disk."""

    folder: Path

    def find(self, ids: Array) -> Array:
        """Returns the (n, D) rows of ids."""

    def forget(self) -> None:
        """Reopens whatever must be reopened so that nothing is cached."""


def measure(run: Run) -> None:
    """Measures cold, then warm."""
    ids = random_ids(run.size(10_000_000, 300_000))
    made = MadeTable(ids, DIM)
    ours = SsdRows(run.work / "ours", DIM)
    ours.load((shard.ids, shard.rows) for shard in made.shards(made.name))
    check(ours, ids)
    cold(run, ours, made, ids)
    if not run.is_late("warm"):
        warm(run, ours, made, ids)
    ours.close()


def check(rows: Rows, ids: Array) -> None:
    """Raises AssertionError unless a batch returns the stored rows."""
    numbers = np.random.default_rng(1).integers(0, len(ids), 1000)
    if not np.array_equal(rows.find(ids[numbers]), rows_of_numbers(numbers, DIM)):
        raise AssertionError(f"{type(rows).__name__} gave other rows than were put in: the figures would mean nothing")


def cold_finder(rows: Rows, ids: Array, batch: int = BATCH) -> Contestant:
    """Returns a contestant: ids a second of one batch with nothing in the page cache, another batch each time."""
    rng = np.random.default_rng(7)

    def run(_: int) -> float:
        chosen = ids[rng.choice(len(ids), min(batch, len(ids)), replace=False)]
        rows.forget()
        drop_page_cache(rows.folder)
        began = time.perf_counter()
        rows.find(chosen)
        return len(chosen) / (time.perf_counter() - began)

    return run


def disk_limit(run: Run, file: Path) -> dict[str, Contestant]:
    """Measures random 4 KiB reads a second with 32 under way; the claim is judged by the first contestant."""
    seeds = iter(range(1_000_000))

    def probe(_: int) -> float:
        reads, engine = random_reads(str(file), block_bytes=BLOCK, depth=DEPTH, count=BATCH, seed=next(seeds))
        run.report.remark(f"own probe: {engine}")
        return reads

    limits: dict[str, Contestant] = {"own probe, QD32": probe}
    if has_fio():
        return {"fio, QD32": lambda _: fio_reads_per_second(file), **limits}
    run.report.remark("fio is not installed (apt-get install fio): the limit is our own probe")
    return limits


def cold(run: Run, ours: SsdRows, made: MadeTable, ids: Array) -> None:
    """Compares cold reads with the disk, RocksDB and LMDB."""
    size = len(ids) * DIM * 4
    file = run.work / "limit.bin"
    write_file(file, size)
    limits = disk_limit(run, file)
    with loaded_databases(run, made, size, direct=True, cache_bytes=_SMALL_CACHE) as databases:
        samples = run.interleave(
            {
                "ours": cold_finder(ours, ids),
                **limits,
                **{peer.name: cold_finder(peer, ids) for peer in databases},
            },
            max_s=60.0,
            quiet_cores=QUIET_CORES_DISK,
        )
    for index, other in enumerate(samples.names[1:]):
        run.report.compare(
            f"cold, {BATCH:,} uniform ids",
            samples,
            other,
            unit="thousand ids/s",
            scale=THOUSANDS,
            target=OF_DISK if index == 0 else None,
        )
    run.settle(samples)
    file.unlink()


def warm(run: Run, ours: SsdRows, made: MadeTable, ids: Array) -> None:
    """Compares reads of cached files, on one thread."""
    size = len(ids) * DIM * 4
    with loaded_databases(run, made, size, direct=False, cache_bytes=2 * size + _SMALL_CACHE) as databases:
        everyone: list[tuple[str, Rows]] = [("ours", ours), *((peer.name, peer) for peer in databases)]
        for _, rows in everyone:
            for start in range(0, len(ids), BATCH):
                rows.find(ids[start : start + BATCH])
        rng = np.random.default_rng(8)
        batches = [ids[rng.choice(len(ids), BATCH, replace=False)] for _ in range(40)]

        def finder(rows: Rows) -> Contestant:
            return per_second(lambda turn: rows.find(batches[turn % len(batches)]), BATCH, piece_s=run.piece_s)

        samples = run.interleave({name: finder(rows) for name, rows in everyone}, max_s=30.0)
        for other in samples.names[1:]:
            run.report.compare(
                f"warm, {BATCH:,} uniform ids, 1 thread",
                samples,
                other,
                unit="thousand ids/s",
                scale=THOUSANDS,
                target=OVER_ROCKSDICT if other == RocksRows.name else None,
            )
        run.settle(samples)


@contextmanager
def loaded_databases(
    run: Run, made: MadeTable, size: int, *, direct: bool, cache_bytes: int
) -> Iterator[list[RocksRows | LmdbRows]]:
    """Yields RocksDB and LMDB with the same rows, and removes them afterwards."""
    databases: list[RocksRows | LmdbRows] = []
    folder = run.work / "peers"
    try:
        rocks = RocksRows(fresh(folder / "rocks"), DIM, cache_bytes=cache_bytes, direct=direct)
        databases.append(rocks)
        try:
            databases.append(LmdbRows(fresh(folder / "lmdb"), DIM, 3 * size + (64 << 20)))
        except PeerMissingError as missing:
            run.report.remark(f"LMDB: {missing}")
        for shard in made.shards(made.name):
            for database in databases:
                database.load(shard.ids, shard.rows)
        yield databases
    finally:
        for database in databases:
            database.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    script("ssd")
