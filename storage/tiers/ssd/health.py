"""Reads a whole store to check whether it is sound, and drops damaged parts so that they are loaded again.

Whole tables are dropped: the version still has their rows, and the deltas have the rows that they changed. A store of
which a table was dropped is at no snapshot, so the next load fills that table from the version, and the deltas are
applied again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage._pages import PageFile
from storage.errors import CorruptStoreError, StoreError
from storage.tiers.ssd.database import Database
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.disk_room import bytes_below
from storage.tiers.ssd.keys import CHANGED, GENERATION_NUMBERS, generation_group, table_of_group
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.table_book import is_first_format, state_marker
from storage.tiers.ssd.tables import Generation, StateText, TableState
from storage.tiers.ssd.tier import SsdTier

_PAGES = 256
_MOST_PROBLEMS = 100
# Takes the pages read and all pages.
CheckProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class TableReport:
    """The report of one table."""

    number: int
    #: The table's name, "" for a table that no model names.
    name: str
    rows: int
    pages: int
    bytes: int
    #: The rows, or absences, on top of its page file.
    changes: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class StoreReport:
    """The report of a store."""

    path: Path
    #: The store's snapshot, "" for none.
    at: str
    bytes: int
    tables: tuple[TableReport, ...]
    #: The problems that do not belong to a table.
    problems: tuple[str, ...] = ()
    #: What repair_store dropped.
    dropped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when neither the store nor a table has a problem."""
        return not self.problems and not any(table.problems for table in self.tables)


class _Store:
    """A store opened without its tier as far as possible, so that nothing is compacted or removed."""

    def __init__(self, path: Path, limits: SsdOptions | None = None) -> None:
        if not (path / "rocksdb").is_dir():
            raise StoreError(f"{path}: there is no store in this folder")
        self.path = path
        self.limits = limits or SsdOptions()
        self.database = Database(path / "rocksdb", self.limits, direct=False)
        try:
            if is_first_format(self.database):
                raise StoreError(
                    f"{path}: an earlier build wrote this store; whoever opens it to serve empties it and loads it "
                    "anew from the published version, so there is nothing to look at"
                )
            self.names = {number: name for name, number in json.loads(self.database.marker("tables") or "{}").items()}
            self.states: dict[int, StateText] = {}
            self.broken: dict[int, str] = {}
            for marker, text in self.database.markers(state_marker(0)[:-1]).items():
                number = int(marker.split(".", 1)[1])
                try:
                    self.states[number] = StateText.parse(text)
                except (ValueError, KeyError, TypeError) as error:
                    self.broken[number] = f"marker {marker} says {text!r}: {error}"
        except BaseException:
            self.database.close()
            raise


def verify_store(path: Path, progress: CheckProgress | None = None, *, pages: bool = True) -> StoreReport:
    """Reads everything in a store that is not open: every page (unless pages is False), changed row and marker.

    Raises StoreError when there is no store, it is open elsewhere or it may not be read; damage is reported.
    """
    try:
        store = _Store(path)
    except CorruptStoreError as error:
        return StoreReport(path, "", bytes_below(path), (), (str(error),))
    try:
        return _report(store, progress, pages)
    finally:
        store.database.close()


def describe_store(path: Path) -> StoreReport:
    """Describes a store as verify_store does, without reading pages: what it holds, and what cannot be opened."""
    return verify_store(path, pages=False)


def repair_store(path: Path, progress: CheckProgress | None = None) -> StoreReport:
    """Checks a store as verify_store does, then drops each damaged table, or everything when the database is damaged.

    The report says what was found, and what was dropped. The next load rebuilds that from the version.
    """
    report = verify_store(path, progress)
    if report.ok:
        return report
    if report.problems:
        with disk_errors(f"repairing {path}"):
            for name in ("rocksdb", "pages", "ingest"):
                shutil.rmtree(path / name, ignore_errors=True)
        return StoreReport(path, report.at, report.bytes, report.tables, report.problems, ("everything",))
    store = _Store(path)
    try:
        dropped = []
        for table in report.tables:
            if table.problems:
                _drop(store, table.number)
                dropped.append(table.name or str(table.number))
        return StoreReport(path, report.at, report.bytes, report.tables, report.problems, tuple(dropped))
    finally:
        store.database.close()


def verify_open(tier: SsdTier, progress: CheckProgress | None = None) -> StoreReport:
    """Checks a store that this process has open, as verify_store does; merges and compactions may go on."""
    book, tables = tier.book, []
    files = {table: book.state(table) for table in book.durable()}
    meter = _Meter(sum(state.file.pages for state in files.values() if state.file is not None), progress)
    names = {number: name for name, number in json.loads(tier.marker("tables") or "{}").items()}
    for table, state in files.items():
        problems = [] if state.file is None else _page_problems(state.file, meter)
        changes = 0
        for generation in state.generations:
            ids = generation.ids.sorted()
            for start in range(0, len(ids), _PAGES):
                try:
                    values = tier.database.get(generation.group, ids[start : start + _PAGES])
                except StoreError as error:
                    problems.append(str(error))
                    break
                changes += sum(value is not None for value in values)
                problems += _size_problems(values, state.file)
        tables.append(_table_report(table, names.get(table, ""), state.file, changes, problems))
    return StoreReport(tier.path, tier.marker("at") or "", tier.size_bytes(), tuple(tables))


class _Meter:
    def __init__(self, pages: int, progress: CheckProgress | None) -> None:
        self._pages, self._progress, self._done = pages, progress, 0

    def add(self, pages: int) -> None:
        self._done += pages
        if self._progress is not None:
            self._progress(self._done, self._pages)


def _report(store: _Store, progress: CheckProgress | None, pages: bool) -> StoreReport:
    files: dict[int, PageFile] = {}
    problems: dict[int, list[str]] = {number: [text] for number, text in store.broken.items()}
    for number, state in store.states.items():
        if state.file is not None:
            try:
                with disk_errors(f"opening {store.path}"):
                    files[number] = PageFile.open(str(store.path / "pages" / state.file))
                if files[number].table != number:
                    problems.setdefault(number, []).append(f"{files[number].path} is of table {files[number].table}")
            except StoreError as error:
                problems.setdefault(number, []).append(str(error))
    meter = _Meter(sum(file.pages for file in files.values()), progress)
    for number, file in files.items() if pages else ():
        problems.setdefault(number, []).extend(_page_problems(file, meter))
    changes: dict[int, int] = {}
    general: list[str] = []
    try:
        for key, value in store.database.entries():
            group = int.from_bytes(key[:4], "big")
            table = table_of_group(group)
            if group < generation_group(0, 0) or group >= CHANGED or not _is_live(store, table, group):
                continue
            changes[table] = changes.get(table, 0) + 1
            found = problems.setdefault(table, [])
            if len(found) < _MOST_PROBLEMS:
                found += _size_problems([value], files.get(table))
    except StoreError as error:
        general.append(str(error))
    numbers = sorted({*store.states, *store.broken, *changes})
    tables = tuple(
        _table_report(n, store.names.get(n, ""), files.get(n), changes.get(n, 0), problems.get(n, [])) for n in numbers
    )
    at = "" if general else store.database.marker("at") or ""
    return StoreReport(store.path, at, bytes_below(store.path), tables, tuple(general))


def _is_live(store: _Store, table: int, group: int) -> bool:
    state = store.states.get(table, StateText(None, 0, None))
    live = {generation_group(table, state.newer)}
    if state.older is not None:
        live.add(generation_group(table, state.older))
    return group in live


def _page_problems(file: PageFile, meter: _Meter) -> list[str]:
    problems: list[str] = []
    for first in range(0, file.pages, _PAGES):
        count = min(_PAGES, file.pages - first)
        try:
            with disk_errors(f"reading {file.path}"):
                problems += file.problems(first, count)
        except StoreError as error:
            problems.append(str(error))
        meter.add(count)
        if len(problems) >= _MOST_PROBLEMS:
            return [*problems[:_MOST_PROBLEMS], f"{file.path}: there may be more; the pages behind were not read"]
    return problems


def _size_problems(values: list[bytes | None], file: PageFile | None) -> list[str]:
    if file is None:
        return []
    return [
        f"{file.path}: a changed row has {len(value)} bytes, those of the file have {file.row_bytes}"
        for value in values
        if value and len(value) != file.row_bytes
    ]


def _table_report(number: int, name: str, file: PageFile | None, changes: int, problems: list[str]) -> TableReport:
    rows, pages, size = (0, 0, 0) if file is None else (file.rows, file.pages, file.file_bytes)
    return TableReport(number, name, rows, pages, size, changes, tuple(problems))


def _drop(store: _Store, number: int) -> None:
    state = store.states.get(number, StateText(None, 0, None))
    empty = TableState(Generation.empty(number, state.newer + 1))
    gone: dict[str, str | None] = {"version": None, "at": None, state_marker(number): empty.text()}
    if number in store.names:
        gone[f"content.{store.names[number]}"] = None
    store.database.set_markers(gone)
    first = generation_group(number, 0)
    store.database.clear_groups(first, first + GENERATION_NUMBERS)
    store.database.clear_groups(CHANGED + number, CHANGED + number + 1)
    # Its files are removed when the store is opened, because no marker names them.
