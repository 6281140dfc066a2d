"""Holds the states of all tables of a store; reads them from the durable markers and the keys of the database."""

from __future__ import annotations

import logging
import threading
from typing import Any

from storage._pages import PageFile
from storage.errors import CorruptStoreError, StoreError
from storage.tiers.ssd.database import Database
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.keys import MARKERS, MAX_TABLES, SPILLS, table_of_group
from storage.tiers.ssd.page_folder import PageFolder
from storage.tiers.ssd.tables import Generation, StateText, TableState

_log = logging.getLogger(__name__)
# The marker of the folder's format and its value. The first format had all rows in the database and no such marker.
FORMAT, FORMAT_NOW = "format", "2"


def state_marker(table: int) -> str:
    """Returns the name of the marker that holds a table's state."""
    return f"pages.{table}"


class TableBook:
    """Maps table numbers to states. States are replaced whole and read without a lock; writers hold `writing`."""

    def __init__(self, database: Database, pages: PageFolder, writing: Any) -> None:
        self._database = database
        self._pages = pages
        self._writing = writing
        self._states: dict[int, TableState] = {}
        self._released = False
        self._making = threading.Lock()
        _bring_to_format(database)
        self._open_files()
        self._find_changes()

    def state(self, table: int) -> TableState:
        """Returns the present state of a table, an empty one for a table that was never written."""
        state = self._states.get(table)
        if state is None:
            if self._released:
                raise StoreError(f"{self._pages.path.parent}: the store is closed")
            with self._making:
                state = self._states.setdefault(table, TableState(Generation.empty(table, 0)))
        return state

    def numbers(self, first: int = 0, last: int | None = None) -> list[int]:
        """Returns the known tables from `first` to before `last` (None: `first` alone), ascending."""
        end = first + 1 if last is None else last
        return sorted(table for table in list(self._states) if first <= table < end)

    def durable(self) -> list[int]:
        """Returns the known tables that outlive the process."""
        return self.numbers(0, MAX_TABLES)

    def put(self, table: int, state: TableState) -> None:
        """Sets a state whose marker has been written."""
        self._states[table] = state

    def place(self, table: int, file: PageFile) -> None:
        """Gives an empty table its file."""
        with self._writing:
            state = self.state(table)
            if not state.is_empty:
                raise StoreError(f"{self._pages.path}: table {table} was written while it was loaded")
            self._set(table, state.compacted(file))

    def clear(self, table: int) -> None:
        """Removes everything of a table, which must not be compacted meanwhile."""
        with self._writing:
            state = self.state(table)
            self._set(table, state.cleared())
            # From here on readers use the new state, or find nothing under the old one and see that it has changed.
            if table < SPILLS:
                for generation in state.generations:
                    self._database.clear_groups(generation.group, generation.group + 1, sync=False)
            else:
                del self._states[table]
            if state.file is not None:
                self._pages.remove(state.file)

    def page_bytes(self) -> int:
        """Returns the bytes of all page files."""
        return sum(state.file.file_bytes for state in list(self._states.values()) if state.file is not None)

    def release(self) -> None:
        """Releases the files and forgets all tables."""
        self._released = True
        self._states = {}

    def _set(self, table: int, state: TableState) -> None:
        if table < SPILLS:
            self._database.set_markers({state_marker(table): state.text()})
        self._states[table] = state

    def _open_files(self) -> None:
        path = self._pages.path
        said: dict[int, StateText] = {}
        for name, text in self._database.markers(state_marker(0)[:-1]).items():
            try:
                said[int(name.split(".", 1)[1])] = StateText.parse(text)
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptStoreError(f"{path}: the store is damaged: marker {name} says {text!r}") from error
        with disk_errors(f"opening {path}"):
            self._pages.remove_others(state.file for state in said.values() if state.file is not None)
        for table, state in said.items():
            with disk_errors(f"opening {path}"):
                try:
                    file = None if state.file is None else self._pages.open(state.file)
                except FileNotFoundError as error:
                    raise CorruptStoreError(f"{path / str(state.file)}: the file is gone") from error
            newer = Generation.empty(table, state.newer)
            older = None if state.older is None else Generation.empty(table, state.older)
            self._states[table] = TableState(newer, older, file)

    def _find_changes(self) -> None:
        stray: set[int] = set()
        for group, ids in self._database.groups():
            state = self.state(table_of_group(group))
            for generation in state.generations:
                if generation.group == group:
                    generation.ids.add(ids)
                    break
            else:
                stray.add(group)  # a compaction ended without clearing this group
        for group in stray:
            self._database.clear_groups(group, group + 1)


def is_first_format(database: Database) -> bool:
    """Returns whether an earlier build wrote the store, with all rows in the database.

    Raises StoreError for a later format.
    """
    written = database.marker(FORMAT)
    if written not in (None, FORMAT_NOW):
        raise StoreError(
            f"{database.path}: the store has format {written}, this build reads {FORMAT_NOW}; delete the folder to "
            "rebuild it"
        )
    old = bool(database.markers("content.")) or database.begins_with_rows() or database.marker("at") is not None
    return written is None and old


def _bring_to_format(database: Database) -> None:
    if is_first_format(database):
        _log.warning(
            "%s: the store was written by an earlier build, which kept all rows in the database; it is emptied and "
            "loaded anew from the published version",
            database.path,
        )
        database.set_markers({**dict.fromkeys(database.markers("content.")), "version": None, "at": None})
        database.clear_groups(0, MARKERS)
        database.compact_groups(0, MARKERS)
    if database.marker(FORMAT) is None:
        database.set_markers({FORMAT: FORMAT_NOW})
