"""Makes many changes of the SSD tier in one atomic step: builds sorted files beside the database, then ingests them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import rocksdict

from storage.errors import StoreError
from storage.tiers.pace import Pace
from storage.tiers.ssd.database import Database
from storage.tiers.ssd.keys import row_keys
from storage.tiers.ssd.tables import Generation

# Entries between two steps of the pace.
_SLICE = 128


class SortedChanges:
    """Collects puts and deletes with strictly ascending keys; `SsdTier.changes` makes one.

    Nothing is visible before `ingest`. Finishing a file holds the GIL for a time that grows with its size, so the
    changes are divided into several files. These are ingested by one edit of the database's manifest, all or none, and
    are on the disk when `ingest` returns. When the context ends without `ingest`, the files are removed. While it is
    open, nothing else changes the tier (writing: its lock), so that the rows are still added to the generation under
    whose keys they were written.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        pace: Pace,
        file_bytes: int,
        writing: contextlib.AbstractContextManager[Any],
        generation_of: Callable[[int], Generation],
        ingested: Callable[[], None],
    ) -> None:
        self._database = database
        self._folder = folder
        self._pace = pace
        self._file_bytes = file_bytes
        self._writing = writing
        self._generation_of = generation_of
        self._ingested = ingested
        self._writer: Any = None
        self._paths: list[Path] = []
        self._bytes = 0
        self._changed: list[tuple[Generation, np.ndarray]] = []

    def write_rows(self, table: int, ids: np.ndarray, values: Sequence[bytes | None]) -> None:
        """Adds changed rows of a table, encoded; None removes an id's row. Tables ascend, and ids within a table."""
        generation = self._generation_of(table)
        self._changed.append((generation, np.ascontiguousarray(ids, np.int64)))
        self.write(row_keys(generation.group, ids), [b"" if value is None else value for value in values])

    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Adds entries after those written before; None deletes."""
        for start in range(0, len(keys), _SLICE):
            writer = self._writer or self._open()
            for key, value in zip(keys[start : start + _SLICE], values[start : start + _SLICE], strict=True):
                if value is None:
                    del writer[key]
                else:
                    writer[key] = value
                    self._bytes += len(value)
                self._bytes += len(key)
            self._pace.step()
            if self._bytes >= self._file_bytes:
                self._finish()

    def finish(self) -> None:
        """Finishes the last file; nothing can be written afterwards."""
        if self._writer is not None:
            self._finish()

    def ingest(self) -> None:
        """Makes all changes visible and durable in one step."""
        self.finish()
        if self._paths:
            # Before ingesting: a reader that does not find an id in the set reads the page file, which has the right
            # row only until the files are ingested.
            for generation, ids in self._changed:
                generation.ids.add(ids)
            self._database.ingest(self._paths)
            self._ingested()

    def __enter__(self) -> Self:
        self._writing.__enter__()
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:  # read-only, or gone
            self._writing.__exit__(None, None, None)
            raise StoreError(f"writing to {self._folder.parent}: {error}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writing.__exit__(None, None, None)
        self._writer = None
        for path in self._paths:
            # Ingested files were moved. A file that a failing disk keeps is removed when the store is opened again.
            with contextlib.suppress(OSError):
                path.unlink()

    def _open(self) -> Any:
        path = self._folder / f"{secrets.token_hex(8)}.sst"
        self._paths.append(path)
        self._writer = rocksdict.SstFileWriter(options=self._database.options)
        self._writer.open(str(path))
        self._bytes = 0
        return self._writer

    def _finish(self) -> None:
        self._writer.finish()
        self._writer = None
        self._bytes = 0
        self._pace.step()
