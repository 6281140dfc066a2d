"""Writes tables into Parquet files of a folder, which appear whole, and deletes the oldest so that the disk is bounded.

A file is written under a name that begins with a dot, forced to the disk and renamed. Several servers may write into
one folder; each deletes the oldest files of all.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

logger = logging.getLogger("emberline.serving")

SUFFIX = ".parquet"
_ASIDE = ".writing-"
# A file is renamed when it holds so much, whatever its age.
_FILE_BYTES = 64 << 20
# What a server that was killed left aside is deleted after this time.
_LEFT_S = 3600.0
# Seconds between looks at the files of the folder; the first one is taken at once.
_LOOK_S = 10.0


@dataclass
class FileCounts:
    """Counts what a folder got and lost."""

    rows: int = 0
    files: int = 0
    #: Files that were deleted for the bound on bytes, and for their age.
    deleted_bytes: int = 0
    deleted_age: int = 0
    #: Rows that could not be written.
    lost_rows: int = 0


class LogFolder:
    """Writes a log of rows. Not thread-safe. Files that it makes can be read by the owner and the group."""

    def __init__(self, folder: Path, max_bytes: int, max_age_s: float, every_s: float) -> None:
        """Makes the folder at the first write. every_s: how long rows may wait in a file that nobody sees."""
        self._folder = folder
        self._max_bytes, self._max_age_s, self._every_s = max_bytes, max_age_s, every_s
        self._token = secrets.token_hex(4)
        # Of the files of this process, two of which may begin within a millisecond.
        self._number = 0
        self._writer: pq.ParquetWriter | None = None
        self._aside = folder
        self._rows = 0
        self._due = self._look_at = 0.0
        self.counts = FileCounts()
        #: Bytes of the files that were there at the last look.
        self.bytes = 0
        #: Why the last write failed; "" when it did not.
        self.trouble = ""

    def write(self, table: Any, since: float | None = None) -> None:
        """Writes rows; those that cannot be written are counted as lost, and the next ones are tried again.

        since: when the first of them came, by `time.monotonic`; None for now.
        """
        if not table.num_rows:
            return
        try:
            if self._writer is not None and self._writer.schema != table.schema:
                self._finish()
            if self._writer is None:
                self._begin(table, since)
            assert self._writer is not None
            self._writer.write_table(table)
            self._rows += table.num_rows
            if self._aside.stat().st_size >= min(_FILE_BYTES, self._max_bytes // 4):
                self._finish()
        except (OSError, ValueError) as error:  # pyarrow's errors are among them
            self._give_up(error, table.num_rows)

    def lose(self, error: Exception, rows: int) -> None:
        """Counts rows as lost that cannot be written."""
        self.counts.lost_rows += rows
        if not self.trouble:
            logger.error("%s: requests cannot be logged: %s", self._folder, error)
        self.trouble = str(error) or type(error).__name__

    def tick(self, now: float) -> None:
        """Lets what has waited long enough appear, and deletes what is too much. now: of `time.monotonic`."""
        if self._writer is not None and now >= self._due:
            self.close()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            try:
                self._delete()
            except OSError as error:
                self.trouble = f"the files cannot be looked at: {error}"

    def close(self) -> None:
        """Lets all rows appear that were written."""
        try:
            self._finish()
        except (OSError, ValueError) as error:
            self._give_up(error, 0)

    def _begin(self, table: Any, since: float | None) -> None:
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"{time.time_ns() // 1_000_000 % 1000:03d}"
        self._number += 1
        self._aside = self._folder / f"{_ASIDE}{stamp}-{self._token}-{self._number}{SUFFIX}"
        os.close(os.open(self._aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
        self._writer = pq.ParquetWriter(self._aside, table.schema, compression="zstd")
        self._rows = 0
        self._due = (time.monotonic() if since is None else since) + self._every_s

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.close()
        handle = os.open(self._aside, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self._aside.rename(self._folder / self._aside.name.removeprefix(_ASIDE))
        self.counts.files += 1
        self.counts.rows += self._rows
        self._rows = 0
        if self.trouble:
            logger.info("%s: rows are written again", self._folder)
        self.trouble = ""
        self._look_at = 0.0

    def _give_up(self, error: Exception, rows: int) -> None:
        """Loses rows, and those of the file that nobody sees yet."""
        writer, self._writer = self._writer, None
        with suppress(OSError, ValueError):
            if writer is not None:
                writer.close()
        if self._aside != self._folder:
            with suppress(OSError):  # it is deleted later, as what a server that was killed left
                self._aside.unlink(missing_ok=True)
        lost, self._rows = self._rows + rows, 0
        self.lose(error, lost)

    def _delete(self) -> None:
        """Deletes the oldest files until the rest fits, and those that are too old."""
        now = time.time()
        found: list[tuple[str, os.stat_result]] = []
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                if not entry.name.endswith(SUFFIX):
                    continue
                with suppress(FileNotFoundError):  # another server has deleted it
                    known = entry.stat(follow_symlinks=False)
                    if not entry.name.startswith("."):
                        found.append((entry.name, known))
                    elif entry.name.startswith(_ASIDE) and now - known.st_mtime > _LEFT_S:
                        os.unlink(entry.path)
        found.sort()
        total = sum(known.st_size for _, known in found)
        for name, known in found:
            is_old = now - known.st_mtime > self._max_age_s
            if not is_old and total <= self._max_bytes:
                continue
            try:
                (self._folder / name).unlink()
            except FileNotFoundError:
                pass
            except OSError as error:
                self.trouble = f"{name} cannot be deleted: {error}"
                continue
            total -= known.st_size
            self.counts.deleted_age += is_old
            self.counts.deleted_bytes += not is_old
        self.bytes = total
