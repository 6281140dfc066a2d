"""Makes rows on disk for the benchmarks: a table as a published version has it, files to read, caches to drop."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.dram_world import rows_of_numbers
from benchmarks.traffic import Array
from storage.checkpoint.tables import Shard
from storage.specs import TableSpec
from trainer.publishing.embedding_layers import frequency_byte

DEPTH = 32
BLOCK = 4096
_SHARD_ROWS = 1 << 18
_WRITE_BYTES = 8 << 20
_FIO_S = 1


class MadeTable:
    """One table with the interface of a published version: the row of ids[i] holds the value i.

    counts: (N,) how often each id was seen in training; None: nothing was counted.
    """

    path = Path("made")
    equals: str | None = None

    def __init__(self, ids: Array, dim: int, *, name: str = "rows", counts: Array | None = None) -> None:
        self.name, self.dim = name, dim
        self._freq = np.zeros(len(ids), np.uint8) if counts is None else frequency_byte(counts)
        self._order = np.argsort(ids)
        self._ids = ids[self._order]

    @property
    def snapshot(self) -> str:
        """A snapshot id derived from the content."""
        return self.table_digest(self.name)[:32]

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The one table, in a tuple."""
        return (TableSpec(self.name, self.dim, rows=len(self._ids)),)

    def shards(self, table: str) -> Iterator[Shard]:
        """Yields the rows, ids ascending."""
        for start in range(0, len(self._ids), _SHARD_ROWS):
            part = slice(start, start + _SHARD_ROWS)
            rows = rows_of_numbers(self._order[part], self.dim)
            yield Shard(self._ids[part], rows, self._freq[self._order[part]])

    def uses(self, table: str) -> Iterator[tuple[Array, Array]]:
        """Yields ids and use counts, ids ascending."""
        yield self._ids, self._freq[self._order]

    def table_digest(self, table: str) -> str:
        """Returns a digest of the ids and their order, which determine the rows, and of the use counts."""
        parts = (self._ids, self._order, self._freq, np.array([self.dim]))
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def drop_page_cache(folder: Path) -> None:
    """Asks the kernel to drop a folder's files from the page cache, after writing back what is not on the disk yet."""
    for path in folder.rglob("*"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # a file that the store removed meanwhile, or a folder
        try:
            if path.is_file():
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        finally:
            os.close(descriptor)


def write_file(path: Path, size: int) -> None:
    """Writes a file of `size` random bytes sequentially, with O_DIRECT where that works, and syncs it to the disk."""
    size = -(-size // _WRITE_BYTES) * _WRITE_BYTES
    with mmap.mmap(-1, _WRITE_BYTES) as block:  # O_DIRECT needs aligned memory
        block.write(np.random.default_rng(5).bytes(_WRITE_BYTES))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            descriptor = os.open(path, flags | os.O_DIRECT)
        except OSError:
            descriptor = os.open(path, flags)
        try:
            for _ in range(size // _WRITE_BYTES):
                os.write(descriptor, block)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fio_reads_per_second(path: Path) -> float:
    """Returns the random reads a second that fio measures on a file: 4 KiB blocks, direct, 32 under way.

    Raises OSError when fio fails.
    """
    done = subprocess.run(
        [
            "fio",
            "--name=random",
            f"--filename={path}",
            "--rw=randread",
            f"--bs={BLOCK}",
            "--direct=1",
            "--ioengine=io_uring",
            f"--iodepth={DEPTH}",
            f"--runtime={_FIO_S}",
            "--time_based",
            "--randrepeat=0",
            "--output-format=json",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"fio ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def has_fio() -> bool:
    """Returns whether fio is installed."""
    return shutil.which("fio") is not None
