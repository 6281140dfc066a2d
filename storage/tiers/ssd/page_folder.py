"""Manages the folder of page files: writes them from rows in any order, opens them, and removes old ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from storage._pages import PageFile, PageWriter, RunsMerge
from storage.errors import CorruptStoreError
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.ssd.ahead import one_ahead
from storage.tiers.ssd.disk_room import DiskRoom, bytes_below
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.row_arrays import checked_ids, encoded

_PIECE_ROWS = 1 << 17
# Rows of a piece that is written beside requests: well below a slice of the pace.
_PACED_ROWS = 1 << 10
# The bytes between two checks of the room, and of one step of a merge of runs.
_STEP_BYTES = 16 << 20
# Files that are merged at once; each holds a megabyte of memory meanwhile.
_MOST_RUNS = 64

Done = Callable[[int], None]


class PageFolder:
    """Manages files `TABLE-NUMBER.pages`; a number is never used twice while a store is open. Thread-safe."""

    def __init__(self, path: Path, limits: SsdOptions, room: DiskRoom) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self._limits = limits
        self._room = room
        self._lock = threading.Lock()
        self._next = 1 + max((_number_of(name) for name in os.listdir(path)), default=0)
        self._cached_bytes = _memory_bytes() // 4

    def new_path(self, table: int) -> Path:
        """Returns the path of a new file of a table."""
        with self._lock:
            number, self._next = self._next, self._next + 1
        return self.path / f"{table:08x}-{number:08x}.pages"

    def open(self, name: str) -> PageFile:
        """Opens a file of the folder. Raises CorruptPageError, OSError."""
        return PageFile.open(str(self.path / name), direct=self._direct())

    def writer(self, path: Path, table: int, row_bytes: int, row_type: str) -> PageWriter:
        """Makes a writer of a new file."""
        bits = self._limits.page_bloom_bits
        return PageWriter(str(path), table=table, row_bytes=row_bytes, row_type=row_type, bits_per_id=bits)

    def write(
        self, table: int, shards: Iterable[tuple[np.ndarray, np.ndarray]], row_type: str, pace: Pace, done: Done
    ) -> PageFile | None:
        """Writes all rows of shards (ids, rows), each id once, in any order, to a new file and opens it.

        Returns None when there is no shard. Rows that come in order go directly into the file. Otherwise each sorted
        run becomes a file of its own, and these are merged; a shard is sorted in memory. done: called with the rows so
        far.
        """
        writer: PageWriter | None = None
        runs: list[Path] = []
        path = self.new_path(table)
        rows_done = 0
        looked_until = 0
        try:
            for given, raw in one_ahead(shards) if pace is UNHURRIED else shards:
                ids, rows = checked_ids(given), encoded(raw, len(given))
                ascending = bool((ids[1:] > ids[:-1]).all())
                first = int(ids.min()) if len(ids) else 0
                if writer is not None and writer.rows and len(ids) and first <= writer.last_id:
                    writer.finish()
                    runs.append(path)
                    if len(runs) == _MOST_RUNS:
                        runs = [self._merged(table, runs, row_type, pace)]
                    path, writer, looked_until = self.new_path(table), None, 0
                if writer is None:
                    writer = self.writer(path, table, rows.shape[1], row_type)
                # A shard out of order must be sorted whole.
                piece = max(1, len(ids)) if not ascending else _PIECE_ROWS if pace is UNHURRIED else _PACED_ROWS
                for start in range(0, len(ids), piece):
                    part = slice(start, start + piece)
                    more = len(ids[part]) * (rows.shape[1] + ids.itemsize)
                    if writer.bytes + more > looked_until:
                        self._room.require(more, f"writing {self.path}")
                        looked_until = writer.bytes + more + _STEP_BYTES
                    (writer.append if ascending else writer.append_sorting)(ids[part], rows[part])
                    pace.step()
                    rows_done += len(ids[part])
                    done(rows_done)
            if writer is None:
                return None
            writer.finish()
            runs.append(path)
            if len(runs) > 1:
                runs = [self._merged(table, runs, row_type, pace)]
            return self.open(runs[0].name)
        except BaseException:
            for run in runs:
                run.unlink(missing_ok=True)
            raise

    def remove(self, file: PageFile) -> None:
        """Unlinks a file. Readers that have it open go on; the disk space is freed with the last of them."""
        Path(file.path).unlink(missing_ok=True)

    def remove_others(self, names: Iterable[str]) -> None:
        """Removes every file but those named, such as those of loads and compactions that did not end."""
        kept = set(names)
        for name in os.listdir(self.path):
            if name not in kept:
                (self.path / name).unlink(missing_ok=True)

    def _merged(self, table: int, runs: list[Path], row_type: str, pace: Pace) -> Path:
        files = [PageFile.open(str(run), direct=False) for run in runs]
        self._room.require(sum(file.file_bytes for file in files), f"writing {self.path}")
        path = self.new_path(table)
        writer = self.writer(path, table, files[0].row_bytes, row_type)
        merge = RunsMerge(files, writer)
        while not merge.advance(_STEP_BYTES if pace is UNHURRIED else 1 << 18):
            pace.step()
        writer.finish()
        for run in runs:
            run.unlink()
        return path

    def _direct(self) -> bool:
        if self._limits.direct != "auto":
            return self._limits.direct == "on"
        # Files that fit into the page cache are served from it; a much larger store would only thrash it.
        return bytes_below(self.path) > self._cached_bytes  # files come and go meanwhile


def check_row_bytes(file: PageFile, row_bytes: int) -> None:
    """Raises CorruptStoreError for a file whose rows have another size."""
    if file.row_bytes != row_bytes:
        raise CorruptStoreError(
            f"{file.path}: a row has {file.row_bytes} bytes, expected {row_bytes}; the store is damaged or belongs to "
            "another model"
        )


def _number_of(name: str) -> int:
    try:
        return int(name.split("-", 1)[1].split(".", 1)[0], 16)
    except (IndexError, ValueError):
        return 0


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
