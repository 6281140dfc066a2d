"""A compaction makes one new page file of a table's page file and the changes on top of it, while reads and merges go
on.

    compaction_freeze   from here on changes go into a new generation; the earlier one is fixed
    compaction_write    the new file, of the old one and the fixed generation, is on the disk; nothing refers to it yet
    compaction_switch   the table consists of the new file and the new generation: one durable marker, then memory
    compaction_clear    the compacted generation's keys and the old file's name are removed

A row is the same before and after each step, so caches and lookups are not affected; `reads` explains why a reader that
began before a step gets the right row after it.

A crash at any moment is recovered from. Before compaction_freeze nothing has happened. Between compaction_freeze and
compaction_switch the marker names the old file and both generations: the compaction is begun again, and a file that no
marker names is removed when the store is opened. After compaction_switch the marker names the new file; keys of a
generation that no marker names, and the old file, are removed when the store is opened.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from storage._pages import ChangesMerge, PageFile
from storage.errors import EmberlineError
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.ssd.damage import Damage
from storage.tiers.ssd.database import Database, Values, check_value
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.disk_room import DiskRoom
from storage.tiers.ssd.keys import marker_key
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.page_folder import PageFolder
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.table_book import TableBook, state_marker
from storage.tiers.ssd.tables import Generation, TableState

_log = logging.getLogger(__name__)
# The steps that a compaction reports when it has done them, in order.
COMPACTION_STEPS = ("compaction_freeze", "compaction_write", "compaction_switch", "compaction_clear")
_CHANGES = 512
_STEP_BYTES = 1 << 20


class _StoppedError(EmberlineError):  # so that `disk_errors` lets it through
    """Stops a compaction, which is begun again later."""


class CompactedStore(Protocol):
    """The part of an SSD tier that a compaction uses."""

    path: Path
    limits: SsdOptions
    damage: Damage
    room: DiskRoom
    pages: PageFolder
    database: Database
    book: TableBook

    @property
    def writing(self) -> AbstractContextManager[object]:
        """The lock that is held to change rows or markers of tables."""

    def changes(self, pace: Pace, expected_bytes: int = 0) -> SortedChanges:
        """Starts changes that become visible in one atomic step."""


class Compactor:
    """Runs the compactions of one store, one at a time.

    They run in `compact`, or in a thread that lives while there is something to do.
    """

    def __init__(self, tier: CompactedStore) -> None:
        self._tier = tier
        self._limits = tier.limits
        self._running = threading.Lock()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stops = 0
        self._thread: threading.Thread | None = None
        self.compactions = 0
        self.error: str | None = None

    def compact(self, table: int, on_step: Callable[[str], None], *, hurried: bool) -> bool:
        """Compacts a table; returns False when it has no changes, or the compaction was stopped.

        hurried: the bound on the write rate does not apply.
        """
        with self._running:
            if not hurried and not self._is_due(self._tier.book.state(table)):
                return False  # another compaction was faster
            try:
                with self._tier.damage.noted():
                    return self._compact(table, on_step, hurried)
            except _StoppedError:
                return False

    def wake(self) -> None:
        """Starts the thread when changes of a table exceed their bound, or a compaction is to be begun again."""
        if self._stop.is_set() or not self._due():
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emberline-compact", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Waits until the thread has nothing to do."""
        thread = self._thread
        if thread is not None:
            thread.join()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Keeps compactions from running within the context; one that was running is begun again later."""
        with self._lock:
            self._stops += 1
            self._stop.set()
        try:
            with self._running:
                yield
        finally:
            with self._lock:
                self._stops -= 1
                if self._stops == 0:
                    self._stop.clear()
            self.wake()

    def close(self) -> None:
        """Stops the running compaction, and starts no other one."""
        with self._lock:
            self._stops += 1
            self._stop.set()
        self.wait()

    def _due(self) -> list[int]:
        book = self._tier.book
        return [table for table in book.durable() if self._is_due(book.state(table))]

    def _is_due(self, state: TableState) -> bool:
        if state.older is not None:
            return True
        ids = len(state.newer.ids)
        if ids == 0:
            return False
        if state.file is None:
            # Without a file the size of its rows is unknown here; a key and a small row are assumed for each.
            return ids * 64 > self._limits.compaction_bytes
        changed = ids * (state.file.row_bytes + 12)
        return changed > max(self._limits.compaction_bytes, self._limits.compaction_share * state.file.file_bytes)

    def _run(self) -> None:
        while True:
            with self._lock:
                due = self._due()
                if not due or self._stop.is_set():
                    self._thread = None
                    return
            try:
                for table in due:
                    self.compact(table, lambda _: None, hurried=False)
                self.error = None
            except Exception as error:
                # Lookups go on as before, with more changes on top of the file; the next change tries again.
                self.error = str(error)
                _log.warning("compacting changes failed, they stay as they are: %s", error)
                with self._lock:
                    self._thread = None
                return

    def _compact(self, table: int, on_step: Callable[[str], None], hurried: bool) -> bool:
        tier = self._tier
        state = tier.book.state(table)
        if state.older is None:
            if len(state.newer.ids) == 0:
                return False
            with tier.writing:
                if self._stop.is_set():
                    raise _StoppedError
                state = tier.book.state(table)
                self._set(table, state.frozen())
        on_step("compaction_freeze")
        state = tier.book.state(table)
        older = state.older
        assert older is not None
        with disk_errors(f"compacting changes in {tier.path}"):
            file = self._write(table, state.file, older, hurried)
        on_step("compaction_write")
        with tier.writing:
            if self._stop.is_set():
                if file is not None:
                    tier.pages.remove(file)
                raise _StoppedError
            # If this fails, the marker may still be on the disk, so the file is left to the next opening.
            self._set(table, tier.book.state(table).compacted(file))
        on_step("compaction_switch")
        self.compactions += 1
        with disk_errors(f"compacting changes in {tier.path}"):
            tier.database.clear_groups(older.group, older.group + 1, sync=False)
            if state.file is not None:
                tier.pages.remove(state.file)
            tier.database.compact_groups(older.group, older.group + 1)
        on_step("compaction_clear")
        return True

    def _set(self, table: int, state: TableState) -> None:
        """Sets a table's state durably.

        Its marker is written as a file that is ingested: a synced write would hold the GIL for as long as the disk
        takes.
        """
        with self._tier.changes(UNHURRIED) as changes, disk_errors(f"compacting changes in {self._tier.path}"):
            changes.write([marker_key(state_marker(table))], [state.text().encode()])
            changes.ingest()
            self._tier.book.put(table, state)

    def _write(self, table: int, base: PageFile | None, older: Generation, hurried: bool) -> PageFile | None:
        """Writes and opens the new file; returns None when there is neither a file nor a row to make one of."""
        tier = self._tier
        ids = older.ids.sorted()
        row_bytes = base.row_bytes if base is not None else self._first_row_bytes(older, ids)
        if row_bytes == 0:
            return None
        needed = (0 if base is None else base.file_bytes) + len(ids) * (row_bytes + 16) * 5 // 4
        tier.room.require(needed, f"compacting changes in {tier.path}")
        path = tier.pages.new_path(table)
        writer = tier.pages.writer(path, table, row_bytes, "unknown" if base is None else base.row_type)
        merge = ChangesMerge(base, writer)
        since = time.monotonic()
        steps = 0

        def pause() -> None:
            nonlocal steps
            steps += 1
            ahead = 0.0 if hurried else steps * _STEP_BYTES / self._limits.write_rate_bytes - (time.monotonic() - since)
            if self._stop.wait(ahead) if ahead > 0 else self._stop.is_set():
                raise _StoppedError

        for start in range(0, len(ids), _CHANGES):
            part = ids[start : start + _CHANGES]
            merge.offer(*_changes(tier, part, tier.database.get(older.group, part), row_bytes))
            while not merge.advance(_STEP_BYTES):
                pause()
        while not merge.finish(_STEP_BYTES):
            pause()
        writer.finish()
        return tier.pages.open(path.name)

    def _first_row_bytes(self, generation: Generation, ids: np.ndarray) -> int:
        for start in range(0, len(ids), _CHANGES):
            for value in self._tier.database.get(generation.group, ids[start : start + _CHANGES]):
                if value:
                    return len(value)
        return 0


def _changes(
    tier: CompactedStore, ids: np.ndarray, values: Values, row_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, rows and removed flags of the changes that the database has; the others were never ingested."""
    there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    said = [value for value in values if value is not None]
    for value in said:
        if value:
            check_value(tier.path, value, row_bytes)
    nothing = bytes(row_bytes)
    rows = np.frombuffer(b"".join(value or nothing for value in said), np.uint8).reshape(len(said), row_bytes)
    removed = np.fromiter((not value for value in said), np.uint8, len(said))
    return ids[there], rows, removed
