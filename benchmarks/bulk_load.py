"""Claim: unsorted rows of 128 bytes become a store on disk at 1.5 million rows a second, the sort included.

Ids and rows lie in memory, in random order. Each repeat builds a new store in an empty folder and ends when the rows
are on the disk. It is compared with RocksDB (files that rocksdict writes and ingests) and LMDB (appending), both
with the same sort before and both on fewer rows, which flatters them; and with the disk itself, writing as many bytes
sequentially.

    python -m benchmarks.bulk_load            # 10 M rows: about two minutes, 4 GB of disk
    python -m benchmarks.bulk_load --quick
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.disk_world import write_file
from benchmarks.dram_world import rows_of_numbers
from benchmarks.gauge import QUIET_CORES_DISK
from benchmarks.measure import Contestant
from benchmarks.peers import PeerMissingError
from benchmarks.peers.databases import LmdbRows, RocksRows, fresh
from benchmarks.ssd_rows import SsdRows
from benchmarks.traffic import Array, random_ids

DIM = 32
ROW_BYTES = 4 * DIM
ROWS_PER_S = 1.5e6
MROWS = 1e-6
_SHARD_ROWS = 1 << 18
_PEERS_LOAD = 1_000_000


def measure(run: Run) -> None:
    """Measures one claim against three peers."""
    ids = random_ids(run.size(10_000_000, 300_000))
    rows = rows_of_numbers(np.arange(len(ids)), DIM)
    some = min(_PEERS_LOAD, len(ids))
    contestants: dict[str, Contestant] = {
        "ours": lambda _: load_ours(run, ids, rows),
        "sequential write": lambda _: write_plain(run, len(ids)),
        "rocksdict SST files": lambda _: load_rocks(run, ids[:some], rows[:some]),
    }
    try:
        load_lmdb(run, ids[:1000], rows[:1000])
        contestants["LMDB append"] = lambda _: load_lmdb(run, ids[:some], rows[:some])
    except PeerMissingError as missing:
        run.report.remark(f"LMDB: {missing}")
    samples = run.interleave(contestants, max_s=150.0, quiet_cores=QUIET_CORES_DISK)
    run.report.pairs(
        f"bulk load of {len(ids):,} unsorted rows of {ROW_BYTES} bytes, sort included",
        [rate * MROWS for rate in samples.values("ours")],
        [ROWS_PER_S * MROWS] * len(samples.kept),
        "bound",
        unit="M rows/s",
        target=1.0,
        dropped=samples.dropped,
        disturbed=not samples.is_clean,
    )
    for other in samples.names[1:]:
        run.report.compare(
            f"bulk load of rows of {ROW_BYTES} bytes, sort included", samples, other, unit="M rows/s", scale=MROWS
        )
    run.settle(samples)


def sorted_parts(ids: Array, rows: Array) -> Iterator[tuple[Array, Array]]:
    """Sorts the rows by id, then yields them in parts in that order."""
    order = np.argsort(ids)
    for start in range(0, len(ids), _SHARD_ROWS):
        part = order[start : start + _SHARD_ROWS]
        yield ids[part], rows[part]


def load_ours(run: Run, ids: Array, rows: Array) -> float:
    """Returns the rows a second that load into the store's SSD tier."""
    store = SsdRows(fresh(run.work / "ours"), DIM)
    try:
        began = time.perf_counter()
        loaded = store.load(sorted_parts(ids, rows))
        taken = time.perf_counter() - began
        if loaded != len(ids):
            raise AssertionError(f"{loaded} rows were loaded of {len(ids)}")
    finally:
        store.close()
        shutil.rmtree(store.folder)
    return len(ids) / taken


def load_rocks(run: Run, ids: Array, rows: Array) -> float:
    """Returns the rows a second that load into RocksDB."""
    database = RocksRows(fresh(run.work / "rocks"), DIM, cache_bytes=8 << 20, direct=False)
    try:
        began = time.perf_counter()
        for part in sorted_parts(ids, rows):
            database.load(*part)
        return len(ids) / (time.perf_counter() - began)
    finally:
        database.close()
        shutil.rmtree(database.folder)


def load_lmdb(run: Run, ids: Array, rows: Array) -> float:
    """Returns the rows a second that load into LMDB."""
    database = LmdbRows(fresh(run.work / "lmdb"), DIM, 4 * rows.nbytes + (64 << 20))
    try:
        began = time.perf_counter()
        for part in sorted_parts(ids, rows):
            database.load(*part)
        return len(ids) / (time.perf_counter() - began)
    finally:
        database.close()
        shutil.rmtree(database.folder)


def write_plain(run: Run, count: int) -> float:
    """Writes as many bytes as the rows and their ids take; returns the equivalent rows a second."""
    path = run.work / "plain.bin"
    began = time.perf_counter()
    write_file(path, count * (ROW_BYTES + 8))
    taken = time.perf_counter() - began
    path.unlink()
    return count / taken


if __name__ == "__main__":
    script("bulk_load")
