"""A folder that grows: files are read once each, in the order of their names, and new ones are waited for.

A file is read when it is complete. Parquet, ORC and Arrow files end with a mark that is written last, and text counts
as complete when it was not changed for some seconds. Of the complete files, the first one by its path is read next, so
a file that appears late is read late and never left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from storage.data.columns import Wanted
from storage.data.files import TABLE_LOGS, TEXT_FORMATS, DataFile, data_file, format_of, partition_of
from storage.data.index import BlockIndex
from storage.data.options import DataOptions
from storage.data.places import Place, is_marker, places
from storage.data.rows import DataRows
from storage.data.streams.base import Piece, Position
from storage.data.streams.start import CLOCKS_MS, Start
from storage.errors import ConfigError

logger = logging.getLogger("emberline.data")

#: Seconds for which a file of text must not have changed.
REST_S = 2.0
_SCAN_LOCAL_S, _SCAN_REMOTE_S = 0.25, 5.0
# A file that is not complete is named after so many seconds.
_LATE_S = 60.0
# Names of files that were read and have left the folder, which are remembered in case they come back.
_GONE_AT_MOST = 1_000
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".inprogress", ".writing", ".crdownload", ".filepart")
# The last bytes of a complete file: those of ORC are followed by one byte.
_ENDS = {"parquet": (b"PAR1", b"PARE"), "arrow": (b"ARROW1",), "orc": (b"ORC",)}


@dataclass(frozen=True)
class _Seen:
    """A file as the last scan found it."""

    file: DataFile
    #: Monotonic time since when it has had this size and this time of change.
    since: float


class FolderSource:
    """The files of a folder, and of its Hive partitions, as a stream. See `StreamSource`."""

    def __init__(
        self, folder: Path | str, wanted: Wanted, options: DataOptions, index: BlockIndex | None = None
    ) -> None:
        found = places(folder)
        if len(found) != 1 or found[0].info().type != fs.FileType.Directory:
            raise ConfigError(f"{folder}: is no folder; a folder of files is followed", field="follow")
        self._root = found[0]
        if not self._root.is_remote:
            path = str(Path(self._root.inner).resolve())
            self._root = Place(self._root.filesystem, path, path)
        self._wanted, self._options, self._index = wanted, options, index
        self._scan_s = _SCAN_REMOTE_S if self._root.is_remote else _SCAN_LOCAL_S
        self._scanned = -self._scan_s
        self._seen: dict[str, _Seen] = {}
        self._strange: set[str] = set()
        self._late: set[str] = set()
        # Files that end with the mark of their format.
        self._ended: set[str] = set()
        #: The size of each file that was read, by its path below the folder. Replaced and never changed.
        self._done: dict[str, int] = {}
        self._pieces: Iterator[Piece] = iter(())
        self._expecting = False
        self._unread = 0

    @property
    def name(self) -> str:
        """The path of the folder."""
        return self._root.shown

    @property
    def is_expecting(self) -> bool:
        """True when a file changed a moment ago and is not complete."""
        return self._expecting

    def waiting(self) -> tuple[int, str]:
        """Returns the number of files that are complete and not read to their end."""
        return self._unread, "files"

    def close(self) -> None:
        """Does nothing."""

    def seek(self, position: Position | None, start: Start, *, skip_lost: bool = False) -> Position:
        """Continues behind a position; `latest` leaves out the files that are complete now, and a time those that were
        last changed before it.
        """
        self._scan()
        self._scanned -= self._scan_s
        if position is None:
            if start != "earliest":
                complete = (name for name, seen in self._seen.items() if self._is_complete(name, seen))
                self._done = {
                    name: self._seen[name].file.size
                    for name in complete
                    if start == "latest" or _changed_ms(self._seen[name].file) < start - CLOCKS_MS
                }
            return {"done": self._done, "file": "", "size": 0, "row": 0}
        self._done = {str(name): int(size) for name, size in position["done"].items()}
        if position["file"]:
            name, size, row = str(position["file"]), int(position["size"]), int(position["row"])
            seen = self._seen.get(name)
            if seen is None or seen.file.size != size:
                what = "it is gone" if seen is None else f"it has {seen.file.size:,} bytes now"
                text = f"{self.name}/{name}: {row:,} rows of this file of {size:,} bytes were trained on, and {what}"
                if not skip_lost:
                    raise ConfigError(
                        f"{text}; put it back, so that its other rows can be read, or give --skip-lost (skip_lost)",
                        field="follow",
                    )
                logger.warning("going on without the rows that were lost: %s", text)
                self._done = {**self._done, name: size if seen is None else seen.file.size}
                return {"done": self._done, "file": "", "size": 0, "row": 0}
            self._pieces = self._pieces_of(name, seen.file, row)
        return position

    def read(self, rows: int) -> Piece | None:
        """Returns the rows of the next block of a file."""
        while True:
            piece = next(self._pieces, None)
            if piece is not None:
                return piece
            found = self._next_file()
            if found is None:
                return None
            self._pieces = self._pieces_of(*found, 0)

    def _pieces_of(self, name: str, file: DataFile, start: int) -> Iterator[Piece]:
        """Yields the rows of a file from a row on; the file counts as read behind its last one."""
        try:
            data = DataRows.of_files([file], self._wanted, self._options, self._index, may_be_empty=True)
        except ConfigError as error:
            if self._options.on_damaged == "fail":
                raise
            logger.warning("left out as damaged: %s", error)
            self._finish(name, file.size)
            return
        total, at = data.rows, start
        before = self._done
        after = self._with_done(name, file.size)
        for block in data.range(start, total).blocks:

            def position(rows: int, at: int = at) -> Position:
                if at + rows == total:
                    return {"done": after, "file": "", "size": 0, "row": 0}
                return {"done": before, "file": name, "size": file.size, "row": at + rows}

            yield Piece(block.read(data.schema), position, block.place_of)
            at += block.rows
        self._finish(name, file.size)

    def _finish(self, name: str, size: int) -> None:
        self._done = self._with_done(name, size)
        if self._index is not None:
            self._index.remove_copies()

    def _with_done(self, name: str, size: int) -> dict[str, int]:
        """Returns what was read, with one more file, and without the oldest ones that have left the folder."""
        gone = [other for other in self._done if other not in self._seen]
        dropped = set(gone[: max(0, len(gone) - _GONE_AT_MOST)])
        return {**{other: own for other, own in self._done.items() if other not in dropped}, name: size}

    def _next_file(self) -> tuple[str, DataFile] | None:
        """Returns the first complete file by its path that was not read, if there is one."""
        now = time.monotonic()
        if now - self._scanned >= self._scan_s:
            self._scan()
        elif self._unread == 0:
            return None
        self._expecting = False
        complete: list[tuple[str, DataFile]] = []
        for name, seen in self._seen.items():
            if name in self._done:
                self._check_unchanged(name, seen.file)
            elif self._is_complete(name, seen):
                complete.append((name, seen.file))
            elif now - seen.since < REST_S:
                self._expecting = True
            elif now - seen.since > _LATE_S and name not in self._late:
                self._late.add(name)
                logger.warning("%s/%s: has no end, and has not changed for a minute", self.name, name)
        self._unread = len(complete)
        return complete[0] if complete else None

    def _check_unchanged(self, name: str, file: DataFile) -> None:
        if file.size != self._done[name]:
            raise ConfigError(
                f"{self.name}/{name}: had {self._done[name]:,} bytes when it was read, and has {file.size:,} now; "
                "files that were read must not change. Give new rows in a file of another name, and put this one back "
                "or remove it",
                field="follow",
            )

    def _is_complete(self, name: str, seen: _Seen) -> bool:
        file = seen.file
        if file.format not in TEXT_FORMATS:
            if name not in self._ended and _has_end(file):
                self._ended.add(name)
            return name in self._ended
        # A file that was there at the start may have rested before.
        changed = 0.0 if file.changed_ns is None else file.changed_ns / 1e9
        return time.monotonic() - seen.since >= REST_S or time.time() - changed >= max(REST_S, self._scan_s)

    def _scan(self) -> None:
        self._scanned = now = time.monotonic()
        if self._root.info().type != fs.FileType.Directory:
            logger.warning("%s: is not there at the moment; it is waited for", self.name)
            self._seen = {}
            return
        found: dict[str, _Seen] = {}
        for name, file in self._walk(self._root, ()):
            before = self._seen.get(name)
            same = before is not None and (before.file.size, before.file.changed_ns) == (file.size, file.changed_ns)
            found[name] = replace(before, file=file) if before is not None and same else _Seen(file, now)
            if not same:
                self._ended.discard(name)
        self._seen = found

    def _walk(self, folder: Place, partition: tuple[tuple[str, str | None], ...]) -> Iterator[tuple[str, DataFile]]:
        for place, info in folder.children():
            name = place.inner[len(self._root.inner.rstrip("/")) + 1 :]
            if place.name in TABLE_LOGS:
                raise ConfigError(
                    f"{self.name}: is a {TABLE_LOGS[place.name]} table ({name}), which is not followed; export it as "
                    "plain Parquet",
                    field="follow",
                )
            if is_marker(place.name) or place.suffix in _UNFINISHED:
                continue
            if info.type == fs.FileType.Directory:
                own = partition_of(place.name)
                if own is None:
                    self._leave_out(name, "a folder that is no partition (KEY=VALUE)")
                else:
                    yield from self._walk(place, (*partition, own))
            elif info.size == 0:
                continue  # it is about to be written
            elif known := format_of(place, info, self._options):
                yield name, data_file(place, info, known, partition)
            else:
                self._leave_out(name, "a file of an unknown kind")

    def _leave_out(self, name: str, what: str) -> None:
        if name not in self._strange:
            self._strange.add(name)
            logger.warning("%s/%s: left out, %s", self.name, name, what)


def _changed_ms(file: DataFile) -> float:
    return time.time() * 1000 if file.changed_ns is None else file.changed_ns / 1e6


def _has_end(file: DataFile) -> bool:
    """Returns whether a file ends with the mark of its format."""
    try:
        with file.place.open() as opened:
            opened.seek(max(0, file.size - 8))
            last = opened.read(8)
    except (OSError, pa.ArrowException):
        return False
    return any(last.endswith(mark) or last[:-1].endswith(mark) for mark in _ENDS[file.format])
