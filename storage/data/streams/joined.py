"""Joins two kinds of events by a key: rows, such as impressions, wait for their label, such as a click.

A row is given on when no label in time can come for it any more: when both streams have reached its time and the window
behind it, by the times of their events, less the lateness that is allowed. Rows keep the order in which they came, so
what is trained on follows from the streams alone, however fast each of them is read. An event that comes more than the
lateness behind a later one of its stream is left out and counted.

What waits is in a log of its own (`join_log`), and the position has the parts of it that count.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.data.streams.base import Piece, Position, StreamSource
from storage.data.streams.join_log import JoinLog, Part, joined_parts
from storage.data.streams.join_options import JoinOptions
from storage.data.streams.start import Start
from storage.data.times import unix_ms
from storage.errors import ConfigError, InvalidInput

# An event this far in the future, by the clock of this machine, has a wrong time.
_FUTURE_MS = 3_600_000
_NONE = -1
_LATEST = 1 << 62


@dataclass
class _Record:
    """Events that were read together, as the log has them."""

    part: Part
    rows: Any
    keys: list[Any]
    times: np.ndarray[Any, Any]
    label_keys: list[Any]
    label_times: np.ndarray[Any, Any]
    place_of: Callable[[int], str]
    #: Rows that were given on.
    emitted: int = 0
    #: True while its labels may be needed.
    holds: bool = True

    @property
    def is_needed(self) -> bool:
        return self.holds or self.emitted < len(self.keys)


class JoinedSource:
    """Rows with their labels, from one stream or two. See `StreamSource`.

    labels: None where they are among the rows.
    """

    def __init__(
        self,
        rows: StreamSource,
        labels: StreamSource | None,
        options: JoinOptions,
        time_column: str,
        log: JoinLog,
        *,
        skips: bool = False,
    ) -> None:
        """skips: events without a time or a key are left out, and not an error."""
        self._sources = [rows] if labels is None else [rows, labels]
        self._options, self._time_column, self._log, self._skips = options, time_column, log, skips
        self._window = round(1000 * options.window_seconds)
        self._lateness = round(1000 * options.lateness_seconds)
        self._at: list[Position] = [{} for _ in self._sources]
        #: The newest time in each stream, in milliseconds.
        self._newest = [_NONE for _ in self._sources]
        self._counts = {"rows": 0, "labels": 0, "rows_late": 0, "labels_late": 0, "positives": 0}
        # In the order in which they came; the first of them that has rows to give on is at `_head`.
        self._records: deque[_Record] = deque()
        self._head: deque[_Record] = deque()
        self._holding: deque[_Record] = deque()
        self._waiting = self._held = 0
        self._labels: dict[Any, list[int]] = {}
        self._quiet_since: list[float | None] = [None for _ in self._sources]

    @property
    def name(self) -> str:
        """The names of the streams."""
        return " + ".join(source.name for source in self._sources)

    @property
    def is_expecting(self) -> bool:
        """True when a stream has something that is no event yet."""
        return any(source.is_expecting for source in self._sources)

    @property
    def figures(self) -> dict[str, int]:
        """Returns what waits, and what was counted since the stream was followed for the first time."""
        return {"waiting_rows": self._waiting, "held_labels": self._held, **self._counts}

    def waiting(self) -> tuple[int, str]:
        """Returns how much has come and is not read, of all streams."""
        counts = [source.waiting() for source in self._sources]
        return sum(count for count, _ in counts), counts[0][1]

    def close(self) -> None:
        """Closes the streams and the log."""
        for source in self._sources:
            source.close()
        self._log.close()

    def sync(self) -> None:
        """Has the events that wait on the disk; call it before a position is committed. Any thread may."""
        self._log.sync()

    def remove_others(self, positions: Iterable[Position]) -> None:
        """Removes what none of the positions needs, nor what is read later. Any thread may call it."""
        self._log.remove_others(part[0] for position in positions for part in position["log"])

    def seek(self, position: Position | None, start: Start, *, skip_lost: bool = False) -> Position:
        """Continues behind a position, with what waited there. Raises CheckpointError when that is gone."""
        for number, source in enumerate(self._sources):
            known = None if position is None else position["streams"][number]
            self._at[number] = source.seek(known, start, skip_lost=skip_lost)
        if position is None:
            return self._position([])
        self._newest, self._counts = list(position["newest"]), dict(position["counts"])
        emitted = int(position["emitted"])
        for part, rows, labels in self._log.read([(number, first, end) for number, first, end in position["log"]]):
            record = self._record(part, rows, labels, _logged(part))
            record.emitted = min(emitted, len(record.keys))
            emitted -= record.emitted
            self._add(record)
        return {**position, "streams": list(self._at)}

    def read(self, rows: int) -> Piece | None:
        """Returns the next rows whose labels are known; None when none are for now."""
        while True:
            piece = self._ready(rows)
            if piece is not None:
                return piece
            if not self._advance(rows):
                return None

    def _ready(self, rows: int) -> Piece | None:
        while self._head and self._head[0].emitted == len(self._head[0].keys):
            self._head.popleft()
        if not self._head:
            return None
        record, until = self._head[0], self._watermark()
        first = record.emitted
        closed = record.times[first : first + rows] + self._window <= until
        count = len(closed) if closed.all() else int(closed.argmin())
        if count == 0:
            return None
        labels = np.array([self._has_label(record, first + row) for row in range(count)], np.int8)
        self._forget(int(record.times[first]))
        parts = joined_parts(each.part for each in self._records)
        before = sum(each.emitted for each in self._records)
        positives = self._counts["positives"] + np.cumsum(labels, dtype=np.int64)
        record.emitted += count
        self._waiting -= count
        base, done = self._position(parts), self._counts["rows"]
        self._counts = {**self._counts, "rows": done + count, "positives": int(positives[-1])}
        table = record.rows.slice(first, count).append_column(self._options.label, pa.array(labels))
        place_of = record.place_of
        return Piece(
            table,
            lambda rows: {
                **base,
                "emitted": before + rows,
                "counts": {**base["counts"], "rows": done + rows, "positives": int(positives[rows - 1])},
            },
            lambda row: place_of(first + row),
        )

    def _position(self, parts: list[Part]) -> Position:
        return {
            "streams": list(self._at),
            "log": [list(part) for part in parts],
            "emitted": 0,
            "newest": list(self._newest),
            "counts": dict(self._counts),
        }

    def _has_label(self, record: _Record, row: int) -> bool:
        own = int(record.times[row])
        times = self._labels.get(record.keys[row])
        return times is not None and any(own - self._lateness <= at < own + self._window for at in times)

    def _forget(self, oldest: int) -> None:
        """Lets labels go that no row can have any more, and records of which nothing is needed.

        oldest: the time of the first row that waits; those behind it are older by the lateness at most.
        """
        while self._holding and _newest_of(self._holding[0]) < oldest - 2 * self._lateness:
            record = self._holding.popleft()
            record.holds = False
            self._held -= len(record.label_keys)
            for key, at in zip(record.label_keys, record.label_times.tolist(), strict=True):
                left = self._labels[key]
                left.remove(at)
                if not left:
                    del self._labels[key]
        while self._records and not self._records[0].is_needed:
            self._records.popleft()

    def _watermark(self) -> int:
        """Returns the time until which all events are there that are not late."""
        times = [newest - self._lateness if newest != _NONE else _NONE for newest in self._newest]
        if len(self._sources) == 1:
            return max(times)
        active = [at for at, source in zip(times, range(2), strict=True) if not self._is_idle(source)]
        return min(active) if active else max(times)

    def _is_idle(self, source: int) -> bool:
        since = self._quiet_since[source]
        return since is not None and time.monotonic() - since >= self._options.idle_seconds

    def _advance(self, rows: int) -> bool:
        """Reads events of the stream that is behind, or else of the other one; returns whether any came."""
        behind = len(self._sources) - 1 if self._newest[-1] < self._newest[0] else 0
        blocked = 0
        for number in [behind, 1 - behind][: len(self._sources)]:
            if self._is_full(number):
                blocked += 1
                continue
            piece = self._sources[number].read(rows)
            if piece is None:
                if self._quiet_since[number] is None and not self._sources[number].is_expecting:
                    self._quiet_since[number] = time.monotonic()
                continue
            self._quiet_since[number] = None
            self._take(number, piece)
            return True
        if blocked == len(self._sources) or self._waits_for_itself():
            raise ConfigError(
                f"data.join.max_waiting: {self._waiting:,} rows and {self._held:,} labels wait, and the window of the "
                f"oldest row is not over; expected more than come within {self._options.window_seconds:g} s and the "
                "lateness, or a shorter window",
                field="data.join.max_waiting",
            )
        return False

    def _is_full(self, source: int) -> bool:
        if len(self._sources) == 1:
            return max(self._waiting, self._held) >= self._options.max_waiting
        return (self._waiting if source == 0 else self._held) >= self._options.max_waiting

    def _waits_for_itself(self) -> bool:
        """True when more rows would be needed to close the window of the oldest one, and there is no room for them."""
        if not self._is_full(0) or not self._head:
            return False
        oldest = int(self._head[0].times[self._head[0].emitted])
        return self._newest[0] - self._lateness < oldest + self._window

    def _take(self, number: int, piece: Piece) -> None:
        """Adds the events of a piece that are in time, to what waits and to the log."""
        table = piece.table
        kept_rows, kept_labels = self._in_time(number, piece, *self._split(number, table))
        # Everything but the keys and the times is of no use in labels.
        small = table.select([*self._options.key, self._time_column])
        part = self._log.append(table.take(pa.array(kept_rows)), small.take(pa.array(kept_labels)))
        self._counts = {**self._counts, "labels": self._counts["labels"] + len(kept_labels)}
        place_of = piece.place_of
        record = self._record(
            part,
            table.take(pa.array(kept_rows)),
            small.take(pa.array(kept_labels)),
            lambda row: place_of(int(kept_rows[row])),
        )
        self._at[number] = piece.after(table.num_rows)
        self._add(record)

    def _split(self, number: int, table: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns which rows of a table are rows, and which are labels."""
        every, none = np.arange(table.num_rows), np.arange(0)
        kind = self._options.kind
        if kind is None:
            return (every, none) if number == 0 else (none, every)
        values = table.column(kind.column).cast(pa.string())
        found = [
            np.flatnonzero(pc.fill_null(pc.equal(values, wanted), False).to_numpy(zero_copy_only=False))
            for wanted in (kind.row, kind.label)
        ]
        return found[0], found[1]

    def _in_time(
        self, number: int, piece: Piece, rows: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns those of the rows and of the labels that are not late, and moves the newest time of their stream."""
        table, chosen = piece.table, np.union1d(rows, labels)
        if not len(chosen):
            return rows, labels
        events = table.take(pa.array(chosen))
        times = unix_ms(events.column(self._time_column))
        wrong = (times < 0) | (times > time.time() * 1000 + _FUTURE_MS)
        for name in self._options.key:
            wrong |= pc.is_null(events.column(name)).to_numpy()
        if wrong.any() and not self._skips:
            row = int(chosen[int(wrong.argmax())])
            raise InvalidInput(
                f"{piece.place_of(row)}: expected a time in {self._time_column!r}, not in the future, and values in "
                f"{', '.join(map(repr, self._options.key))}, by which events are joined; got "
                f"{ {name: table.column(name)[row].as_py() for name in (self._time_column, *self._options.key)} }",
                field="data.join",
            )
        chosen, times = chosen[~wrong], times[~wrong]
        newest = np.maximum.accumulate(np.concatenate([[self._newest[number]], times]))
        kept = chosen[times >= newest[:-1] - self._lateness]
        self._newest[number] = int(newest[-1])
        found = []
        for name, own in (("rows_late", rows), ("labels_late", labels)):
            found.append(np.intersect1d(own, kept))
            late = len(np.intersect1d(own, chosen)) - len(found[-1])
            self._counts = {**self._counts, name: self._counts[name] + late}
        return found[0], found[1]

    def _record(self, part: Part, rows: Any, labels: Any, place_of: Callable[[int], str]) -> _Record:
        keys, times = self._read(rows)
        return _Record(part, rows, keys, times, *self._read(labels), place_of)

    def _read(self, events: Any) -> tuple[list[Any], np.ndarray[Any, Any]]:
        columns = [events.column(name).to_pylist() for name in self._options.key]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return keys, unix_ms(events.column(self._time_column))

    def _add(self, record: _Record) -> None:
        self._records.append(record)
        if record.emitted < len(record.keys):
            self._head.append(record)
            self._waiting += len(record.keys) - record.emitted
        if not record.label_keys:
            record.holds = False
            return
        self._holding.append(record)
        self._held += len(record.label_keys)
        for key, at in zip(record.label_keys, record.label_times.tolist(), strict=True):
            self._labels.setdefault(key, []).append(at)


def _newest_of(record: _Record) -> int:
    return int(record.label_times.max())


def _logged(part: Part) -> Callable[[int], str]:
    number, start, _ = part
    return lambda row: f"row {row} of the events that waited (join/{number:08d}.log, byte {start:,})"
