"""Wraps key-value stores on disk, set up as their manuals advise for point lookups of rows that do not change."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from benchmarks.peers import PeerMissingError
from benchmarks.traffic import Array

_BLOCK = 4096
_BLOOM_BITS = 10


def keys_of(ids: Array) -> list[bytes]:
    """Returns eight bytes for each id, big-endian, so that they sort as the ids do."""
    packed = ids.astype(">i8").tobytes()
    return [packed[at : at + 8] for at in range(0, len(packed), 8)]


def joined(values: list[bytes], dim: int) -> Array:
    """Returns (n, dim) float32 rows of values that are all present."""
    return np.frombuffer(b"".join(values), np.float32).reshape(len(values), dim)


class RocksRows:
    """Uses rocksdict: SST files that are sorted outside and ingested, Bloom filters, 4 KiB blocks, no compression."""

    name = "rocksdict multi_get"

    def __init__(self, folder: Path, dim: int, *, cache_bytes: int, direct: bool) -> None:
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(_BLOOM_BITS, False)
        table.set_block_cache(rocksdict.Cache(cache_bytes))
        table.set_block_size(_BLOCK)
        table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
        self._options = rocksdict.Options(raw_mode=True)
        self._options.create_if_missing(True)
        self._options.set_block_based_table_factory(table)
        self._options.set_compression_type(rocksdict.DBCompressionType.none())
        self._options.set_use_direct_reads(direct)
        self.folder, self.dim = folder, dim
        self._files = 0
        self._database: Any = rocksdict.Rdict(str(folder), self._options)

    def load(self, ids: Array, rows: Array) -> None:
        """Loads sorted ids (n,), all above earlier ones, and their rows (n, D)."""
        self._files += 1
        path = str(self.folder / f"rows-{self._files}.sst")
        writer = rocksdict.SstFileWriter(self._options)
        writer.open(path)
        size = rows.shape[1] * 4
        packed = rows.tobytes()
        for index, key in enumerate(keys_of(ids)):
            writer[key] = packed[index * size : (index + 1) * size]
        writer.finish()
        move = rocksdict.IngestExternalFileOptions()
        move.set_move_files(True)
        self._database.ingest_external_file([path], move)

    def find(self, ids: Array) -> Array:
        """Returns the (n, D) rows of ids that are all present."""
        return joined(self._database.get(keys_of(ids)), self.dim)

    def forget(self) -> None:
        """Does nothing: cold means direct reads beside a small cache."""

    def close(self) -> None:
        """Releases the folder."""
        self._database.close()


class LmdbRows:
    """Uses LMDB: a memory map, with rows appended in order."""

    name = "LMDB getmulti"

    def __init__(self, folder: Path, dim: int, size: int) -> None:
        if importlib.util.find_spec("lmdb") is None:
            raise PeerMissingError("not installed: pip install 'emberline[bench]'")
        self.folder, self.dim = folder, dim
        self._size = size
        self._open()

    def load(self, ids: Array, rows: Array) -> None:
        """Loads sorted ids (n,), all above earlier ones, and their rows (n, D); syncs them to the disk."""
        size = rows.shape[1] * 4
        packed = rows.tobytes()
        with self._environment.begin(write=True) as transaction:
            pairs = ((key, packed[at * size : (at + 1) * size]) for at, key in enumerate(keys_of(ids)))
            transaction.cursor().putmulti(pairs, append=True)
        self._environment.sync(True)

    def find(self, ids: Array) -> Array:
        """Returns the (n, D) rows of ids that are all present, in their order."""
        with self._environment.begin() as transaction:
            pairs = transaction.cursor().getmulti(keys_of(ids))
        return joined([value for _, value in pairs], self.dim)

    def forget(self) -> None:
        """Opens the map anew, because mapped pages are not dropped."""
        self._environment.close()
        self._open()

    def close(self) -> None:
        """Releases the folder."""
        self._environment.close()

    def _open(self) -> None:
        import lmdb

        self._environment = lmdb.open(str(self.folder), map_size=self._size, readahead=False, lock=False)


def fresh(folder: Path) -> Path:
    """Empties the folder and returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
