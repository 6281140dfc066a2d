"""The rows of a stream as batches, which a thread reads and computes ahead of the steps.

Batches are cut by the rows alone, whenever these came: batch_size rows each. Only when the loop asks for the rest, a
batch has fewer. Unless it does, the weights do not depend on when rows came.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from storage.data.columns import in_type, plain
from storage.data.streams import Piece, Position, StreamSource
from storage.data.times import unix_ms
from storage.errors import InvalidInput
from storage.features import Column
from storage.features.times import is_time
from trainer.config import TrainConfig
from trainer.data import (
    TOGETHER_ROWS,
    Batch,
    BatchMaker,
    DeviceBatches,
    Prefetcher,
    check_time_column,
    first_at_fault,
    mapped,
)
from trainer.data.negative_sampling import kept_of_table
from trainer.step_profile import StepProfile

# Seconds between two looks for new rows.
_PAUSE_S = 0.1


@dataclass(frozen=True)
class Taken:
    """Batches, each with the position of the stream behind it."""

    batches: list[Batch]
    positions: list[Position]


@dataclass(frozen=True)
class Idle:
    """Nothing has come."""

    #: Rows that have come and make no whole batch.
    rest: int
    #: True when something has come that is no row yet.
    is_expecting: bool


@dataclass(frozen=True)
class Chunk:
    """Rows that batches are made of."""

    table: Any
    #: Where each batch ends.
    ends: list[int]
    positions: list[Position]
    pieces: list[tuple[Piece, int, int]]


class FollowFlow:
    """Makes the batches of a stream. position: where it continues, as an earlier batch had it. device: where they are
    sent ahead of their step.
    """

    def __init__(
        self,
        config: TrainConfig,
        source: StreamSource,
        profile: StepProfile,
        position: Position,
        device: DeviceBatches | None = None,
    ) -> None:
        self.maker = BatchMaker(config.spec, config.targets, config.training.time_column)
        self._config = config
        self._source = source
        self._profile = profile
        self._device = device
        self._read_rows = int(position["rows"])
        # The stream began with this time, in milliseconds; None: with none.
        self._since: int | None = position.get("since")
        self._held: deque[Piece] = deque()
        self._held_rows = 0
        self._offset = 0  # rows of the first piece that are in batches already
        self._rest_wanted = threading.Event()
        self._recent: deque[Any] = deque(maxlen=2)

    @contextmanager
    def ahead(self) -> Iterator[Iterator[Taken | Idle]]:
        """Yields batches as they come, and in between, several times a second, that nothing has come. It does not end
        by itself; the threads end with the block.
        """
        make = self._profile.working("features", self._made)
        with (
            self.chunks_ahead() as read,
            Prefetcher(mapped(make, read, self._config.training.feature_threads), depth=2) as made,
        ):
            yield iter(made)

    @contextmanager
    def chunks_ahead(self) -> Iterator[Iterator[Chunk | Idle]]:
        """Yields the rows of batches, before features are made of them, as `ahead` yields batches."""
        with Prefetcher(self._chunks(), depth=1) as read:
            yield iter(read)

    def take_rest(self) -> None:
        """Has the rows that make no whole batch come as a smaller one, with those that come meanwhile."""
        self._rest_wanted.set()

    def recent(self, rows: int) -> dict[str, Column] | None:
        """Returns raw columns of up to `rows` of the newest rows, by input; None when there was none."""
        tables = list(self._recent)
        if not tables:
            return None
        table = _joined(tables)
        return self.maker.columns(table.slice(max(0, table.num_rows - rows)).combine_chunks())

    def keep_recent(self, table: Any) -> None:
        """Takes rows for `recent`."""
        self._recent.append(table)

    def _made(self, item: Chunk | Idle) -> Taken | Idle:
        if isinstance(item, Idle):
            return item
        size = self._config.training.batch_size
        try:
            made = Taken(self._batches(item.table, size), item.positions)
        except InvalidInput as error:
            row, alone = first_at_fault(lambda table: self.maker.batches(table, size), item.table)
            if row is None:
                raise
            raise InvalidInput(f"{_place_of(item, row)}: {alone or error}", field=error.field) from error
        self.keep_recent(item.table)
        return made

    def _batches(self, table: Any, size: int) -> list[Batch]:
        batches = self.maker.batches(table, size)
        return batches if self._device is None else [self._device.sent(batch) for batch in batches]

    def _chunks(self) -> Iterator[Chunk | Idle]:
        size = self._config.training.batch_size
        together = size * max(1, TOGETHER_ROWS // size)
        pause = threading.Event()
        while True:
            if self._held_rows >= together:
                yield self._cut(together)
                continue
            with self._profile.stage("read"):
                piece = self._source.read(together)
                piece = None if piece is None else self._sampled(piece)
            if piece is not None:
                self._held.append(piece)
                self._held_rows += piece.table.num_rows
            elif self._held_rows >= size:
                yield self._cut(self._held_rows // size * size)
            elif self._rest_wanted.is_set() and self._held_rows:
                yield self._cut(self._held_rows)
            else:
                yield Idle(self._held_rows, self._source.is_expecting)
                pause.wait(_PAUSE_S)

    def _sampled(self, piece: Piece) -> Piece:
        """Returns the rows that are trained on, with positions that also count the rows of the stream."""
        first, rows, options = self._read_rows, piece.table.num_rows, self._config.data
        if (column := self._config.training.time_column) is not None:
            check_time_column(piece.table.schema, column)
        self._read_rows += rows

        def position(row: int) -> Position:
            own = {"at": piece.after(row), "rows": first + row}
            return own if self._since is None else {**own, "since": self._since}

        kept = np.arange(rows)
        if self._since is not None and column is not None:
            times = unix_ms(piece.table.column(column))
            kept = np.flatnonzero((times >= self._since) | (times < 0))
        if options.negative_sampling != 1.0:
            task, seed = self._config.targets.tasks[0], self._config.training.seed
            kept = np.intersect1d(kept, kept_of_table(piece.table, task, options.negative_sampling, seed, first))
        if len(kept) == rows:
            return Piece(piece.table, position, piece.place_of)
        return Piece(
            piece.table.take(pa.array(kept)),
            lambda row: position(rows if row == len(kept) else int(kept[row - 1]) + 1),
            lambda row: piece.place_of(int(kept[row])),
        )

    def _cut(self, rows: int) -> Chunk:
        """Takes rows that are held, as batches with the position behind each."""
        self._rest_wanted.clear()
        size = self._config.training.batch_size
        ends = [*range(size, rows, size), rows]
        tables, pieces, positions = [], [], []
        done, left = 0, deque(ends)
        while done < rows:
            piece = self._held[0]
            count = min(piece.table.num_rows - self._offset, rows - done)
            tables.append(piece.table.slice(self._offset, count))
            pieces.append((piece, self._offset, count))
            while left and left[0] <= done + count:
                positions.append(piece.after(self._offset + left.popleft() - done))
            done += count
            self._offset += count
            if self._offset == piece.table.num_rows:
                self._held.popleft()
                self._offset = 0
        self._held_rows -= rows
        _check_kinds(pieces)
        return Chunk(_joined(tables), ends, positions, pieces)


def _place_of(chunk: Chunk, row: int) -> str:
    for piece, offset, count in chunk.pieces:
        if row < count:
            return piece.place_of(offset + row)
        row -= count
    return "the stream"


def _check_kinds(pieces: list[tuple[Piece, int, int]]) -> None:
    """Raises InvalidInput for the first column whose values do not go together with those of the rows before."""
    before, offset, _ = pieces[0]
    for piece, start, _ in pieces[1:]:
        for entry in piece.table.schema if piece.table.schema != before.table.schema else ():
            kinds = [_plain_kind(before.table.schema.field(entry.name).type), _plain_kind(entry.type)]
            try:
                pa.unify_schemas([pa.schema([(entry.name, kind)]) for kind in kinds], promote_options="permissive")
            except pa.ArrowException:
                raise InvalidInput(
                    f"{piece.place_of(start)}: the column {entry.name!r} holds {kinds[1]}; expected {kinds[0]}, as in "
                    f"{before.place_of(offset)}",
                    field="follow",
                ) from None


def _joined(tables: list[Any]) -> Any:
    """Returns the rows of several tables as one. Their columns may differ in width, as those of files may."""
    if all(table.schema == tables[0].schema for table in tables):
        return pa.concat_tables(tables)
    return pa.concat_tables([_plain(table) for table in tables], promote_options="permissive")


def _plain_kind(kind: Any) -> Any:
    is_moment = is_time(kind) and (pa.types.is_date(kind) or pa.types.is_timestamp(kind))
    return pa.timestamp("us") if is_moment else plain(kind)


def _plain(table: Any) -> Any:
    kinds = [_plain_kind(entry.type) for entry in table.schema]
    columns = [
        in_type(column, kind, name) for column, kind, name in zip(table.columns, kinds, table.column_names, strict=True)
    ]
    return pa.table(columns, names=table.column_names)
