"""Reading the SSD tier: what changes say of an id, else its page; many tables in one call.

Why a reader gets the row of some moment during its call, whatever moves meanwhile. It takes the state of the table
(`tables`). An id that is in no generation of the state had not been changed when it looked, and the state's file,
which stays open as long as somebody reads it, has its row. An id that is in one is asked of RocksDB, the newer
generation first: what is found was there during the call. What is not found in any either was never ingested (the ids
come first), or the generation was cleared; before it was, the next state was set. So if the state is still the same
after the question, the file has the row, and if it is not, the reader begins again with the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage._pages import ABSENT, FOUND, UNRESOLVED, PageFile, PageReader
from storage.tiers.ssd.database import Database, check_value
from storage.tiers.ssd.disk_errors import disk_errors
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.page_folder import check_row_bytes
from storage.tiers.ssd.row_arrays import checked_ids
from storage.tiers.ssd.table_book import TableBook
from storage.tiers.ssd.tables import TableState

# rows (n, row_bytes) uint8, zeros where there is none; states (n,) uint8
Answer = tuple[np.ndarray, np.ndarray]
_Native = tuple[PageFile | None, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ReadRequest:
    """Ids (n,) int64 of a table, in any order, whose rows have row_bytes bytes."""

    table: int
    ids: np.ndarray
    row_bytes: int


@dataclass(frozen=True)
class _Rest:
    """Positions among the ids asked. unchanged: in no generation. missed: in one, but RocksDB did not have them."""

    unchanged: np.ndarray
    missed: np.ndarray


class Reads:
    """Answers requests. Any number of threads."""

    def __init__(self, path: Path, book: TableBook, database: Database, limits: SsdOptions) -> None:
        self._path = path
        self._book = book
        self._database = database
        with disk_errors(f"reading {path} by {limits.io}"):
            self.reader = PageReader(
                io=limits.io, depth=limits.io_depth, lanes=limits.io_calls, threads=limits.io_threads
            )

    def read(self, requests: Sequence[ReadRequest], timeout_s: float | None) -> list[Answer]:
        """As `SsdTier.read`."""
        for one in requests:
            checked_ids(one.ids)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        answers = [
            (np.zeros((len(one.ids), one.row_bytes), np.uint8), np.full(len(one.ids), UNRESOLVED, np.uint8))
            for one in requests
        ]
        todo: list[tuple[int, np.ndarray | None]] = [(number, None) for number in range(len(requests))]
        while todo:
            native: list[_Native] = []
            spread: list[tuple[Answer, np.ndarray, Answer]] = []
            again: list[tuple[int, np.ndarray | None]] = []
            for number, where in todo:
                request, answer = requests[number], answers[number]
                state = self._book.state(request.table)
                if state.file is not None:
                    check_row_bytes(state.file, request.row_bytes)
                ids = np.ascontiguousarray(request.ids if where is None else request.ids[where])
                rest = self._from_changes(state, ids, where, answer, deadline)
                if rest is None and where is None:
                    native.append((state.file, ids, *answer))
                    continue
                places = np.arange(len(ids)) if where is None else where
                if rest is not None:
                    left = rest.unchanged
                    if len(rest.missed) and self._book.state(request.table) is not state:
                        again.append((number, places[rest.missed]))
                    else:
                        left = np.concatenate([rest.unchanged, rest.missed])
                    places, ids = places[left], ids[left]
                if len(ids):
                    part = (np.zeros((len(ids), request.row_bytes), np.uint8), np.zeros(len(ids), np.uint8))
                    native.append((state.file, ids, *part))
                    spread.append((answer, places, part))
            if native:
                with disk_errors(f"reading from {self._path}"):
                    self.reader.read(native, None if deadline is None else max(0.0, deadline - time.monotonic()))
            for (rows, states), places, (part_rows, part_states) in spread:
                rows[places], states[places] = part_rows, part_states
            todo = again
        return answers

    def export_batch(self, table: int, cursor: int, limit: int, row_bytes: int) -> tuple[int, np.ndarray, np.ndarray]:
        """As `SsdTier.export_batch`."""
        state = self._book.state(table)
        first = cursor - (1 << 63)
        ids, rows = np.empty(0, np.int64), np.empty((0, row_bytes), np.uint8)
        if state.file is not None:
            check_row_bytes(state.file, row_bytes)
            with disk_errors(f"reading from {self._path}"):
                ids, rows = state.file.scan(first, limit)
        changed = state.changed_ids()
        changed = changed[changed >= first]
        # Up to here all that there is has been looked at.
        ends = [int(part[limit - 1]) for part in (ids, changed) if len(part) >= limit]
        changed = changed[:limit]
        if ends:
            kept = ids <= min(ends)
            ids, rows, changed = ids[kept], rows[kept], changed[changed <= min(ends)]
        if len(changed):
            kept = ~np.isin(ids, changed)
            ((new_rows, states),) = self.read([ReadRequest(table, changed, row_bytes)], None)
            hits = states == FOUND
            ids = np.concatenate([ids[kept], changed[hits]])
            rows = np.concatenate([rows[kept], new_rows[hits]])
            order = np.argsort(ids, kind="stable")
            ids, rows = ids[order], rows[order]
        if len(ids) > limit:
            ids, rows = ids[:limit], rows[:limit]
            ends = [int(ids[-1])]
        following = min(ends) + 1 if ends else 1 << 63
        return -1 if following == 1 << 63 else following + (1 << 63), ids, rows

    def _from_changes(
        self, state: TableState, ids: np.ndarray, where: np.ndarray | None, answer: Answer, deadline: float | None
    ) -> _Rest | None:
        """Answers ids that a generation says something of; what is left. None: no generation has any of them."""
        flagged = np.zeros(len(ids), np.bool_)
        for generation in state.generations:
            if len(generation.ids):
                flagged |= generation.ids.contains(ids).view(np.bool_)
        if not flagged.any():
            return None
        unchanged, missed = np.flatnonzero(~flagged), np.flatnonzero(flagged)
        missed = missed[np.argsort(ids[missed], kind="stable")]  # neighbours share blocks
        rows, states = answer
        for generation in state.generations:
            if deadline is not None and time.monotonic() >= deadline:
                return _Rest(unchanged, missed[:0])  # they stay unresolved
            has = generation.ids.contains(ids[missed]).view(np.bool_)
            asked = missed[has]
            values = self._database.get(generation.group, ids[asked])
            hits = np.fromiter((value is not None for value in values), np.bool_, len(values))
            kept = np.fromiter((bool(value) for value in values), np.bool_, len(values))
            full = [value for value in values if value]
            for value in full:
                check_value(self._path, value, rows.shape[1])
            places = asked if where is None else where[asked]
            states[places[hits]] = ABSENT
            states[places[kept]] = FOUND
            if full:
                rows[places[kept]] = np.frombuffer(b"".join(full), np.uint8).reshape(len(full), rows.shape[1])
            missed = np.concatenate([missed[~has], asked[~hits]])
        return _Rest(unchanged, missed)
