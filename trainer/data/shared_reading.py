"""Reads the rows of an epoch for all ranks together: each reads some of the blocks, and sends the rows to their ranks.

Windows are read in rounds. In a round each rank reads the blocks that it is dealt, all exchange the rows, and each puts
its own ones in order, so batches hold the rows that they hold in one process, whoever has read them.

A thread of each rank reads and exchanges, ahead of the steps, and must never wait for one that has ended. So a round
belongs to a batch: the steps, which all ranks take together, permit it when they come so far, and whoever has permitted
it takes part in it, or says in its place that it ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.data import RowBlock
from storage.errors import EmberlineError, InvalidInput, RankLost
from trainer.data.dealing import Dealer
from trainer.data.prefetch import mapped
from trainer.data.row_messages import packed, parts_of, unpacked
from trainer.data.stream import RowStream, Window, taken
from trainer.rank_group import RankGroup

_Item = TypeVar("_Item")

#: Blocks of a round for each rank, so that one that reads slowly can have fewer.
_BLOCKS = 2
# What a rank says in a round: that it has read, that it could not, or that it ends.
_READ, _FAILED, _ENDS = range(3)


@dataclass(frozen=True)
class _Round:
    """Windows that are read together."""

    windows: tuple[Window, ...]
    blocks: tuple[RowBlock, ...]

    @property
    def before(self) -> int:
        """Rows of the epoch before it."""
        return self.windows[0].before


class _EndedError(Exception):
    """The steps have ended while the thread read."""


class SharedReading:
    """The rows of a rank of one epoch, from `first_batch` on.

    lookahead: batches that must be permitted beyond the one that is waited for, as stages behind hold so many. dealer:
    that of the whole training. Use it as a context manager, around the threads that take `tables`; `stop` comes before
    these are joined.
    """

    def __init__(
        self, stream: RowStream, epoch: int, first_batch: int, group: RankGroup, dealer: Dealer, lookahead: int
    ) -> None:
        self._stream = stream
        self._epoch = epoch
        self._skipped = first_batch * stream.batch_size
        self._first_batch = first_batch
        self._group = group
        self._dealer = dealer
        self._lookahead = lookahead
        self._rounds = _rounds(stream.planned(epoch, self._skipped), group.size)
        self._state = threading.Condition()
        self._permitted = self._exchanged = 0
        self._stopped = self._is_over = False
        self._seconds: list[float] = []  # that each block of a round took

    def __enter__(self) -> SharedReading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._exchanged < self._permitted and not self._is_over:
            # Another rank may be in this round already, and waits for this one. If it has gone, the steps say so.
            with suppress(RankLost):
                self._group.gather([_ENDS, 0, 0, *[0] * self._group.size])

    @property
    def rounds(self) -> int:
        """The number of tables, at most."""
        return len(self._rounds) + 1

    def permitting(self, batches: Iterable[_Item]) -> Iterator[_Item]:
        """Yields batches from the first one on, and permits what each needs before it is waited for."""
        iterator = iter(batches)
        for number in count(self._first_batch):
            self._permit(number)
            batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    def _permit(self, batch: int) -> None:
        """Permits the rounds that a batch, and the stages that work ahead of it, need."""
        with self._state:
            while self._permitted < len(self._rounds):
                begins = self._batch_of(self._permitted)
                begins_before = self._batch_of(max(0, self._permitted - 1))
                if batch < begins - self._lookahead and batch < begins_before:
                    break
                self._permitted += 1
            self._state.notify_all()

    def stop(self) -> None:
        """Ends the thread at the next block that it reads."""
        with self._state:
            self._stopped = True
            self._state.notify_all()

    def tables(self, working: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[Any]:
        """Yields the rows of this rank as `RowStream.windows` does. working: is entered while the thread works.

        Raises what `RowBlock.read` raises, at every rank, if it does at one.
        """
        for number, own in enumerate(self._rounds):
            if not self._is_permitted(number):
                return
            with working():
                try:
                    table = self._read_round(own)
                except _EndedError:
                    return
                except BaseException:
                    self._is_over = True  # no rank takes part in another round
                    raise
            self._exchanged += 1
            if table.num_rows:
                yield table
        if self._stream.ends_without_rows(self._first_batch):
            yield self._stream.rows.schema.empty_table()

    def _batch_of(self, number: int) -> int:
        """Returns the first batch that needs a round."""
        return max(self._first_batch, self._rounds[number].before // self._stream.batch_size)

    def _is_permitted(self, number: int) -> bool:
        """Waits for the permission of a round; returns False when there will be none, or the steps have ended."""
        with self._state:
            self._state.wait_for(lambda: self._stopped or self._permitted > number)
            return not self._stopped

    def _read_round(self, own: _Round) -> Any:
        group = self._group
        readers = self._dealer.deal([block.rows for block in own.blocks])
        places = [_Places(self._stream, self._epoch, window, self._skipped, group.rank) for window in own.windows]
        owners = [each for window in places for each in window.of_blocks]
        mine = [place for place, reader in enumerate(readers) if reader == group.rank]
        parts: list[list[Any]] = []
        error: Exception | None = None
        self._seconds = []
        try:
            for place, table in zip(mine, self._read(own.blocks[place] for place in mine), strict=True):
                parts.append(parts_of(table, owners[place], group.size))
        except _EndedError:
            raise
        except Exception as caught:
            error = caught
        schema = self._stream.rows.schema
        message, sizes = packed([] if error else parts, group.rank, group.size, schema)
        rows = sum(own.blocks[place].rows for place in mine)
        heads = group.gather([_FAILED if error else _READ, rows, round(sum(self._seconds) * 1e6), *sizes])
        self._check(heads[:, 0], error)
        self._dealer.measured(heads[:, 1].tolist(), (heads[:, 2] / 1e6).tolist())
        coming = heads[:, 3 + group.rank].tolist()
        came = unpacked(group.exchange(message, sizes, coming, "data"), coming)
        if parts:
            came[group.rank] = pa.concat_tables([block[group.rank] for block in parts])
        return _in_order(came, readers, places, schema)

    def _read(self, blocks: Iterable[RowBlock]) -> Iterator[Any]:
        def read(block: RowBlock) -> Any:
            if self._stopped:
                raise _EndedError
            began = time.perf_counter()
            table = block.read(self._stream.rows.schema)
            self._seconds.append(time.perf_counter() - began)
            return table

        return mapped(read, blocks, self._stream.rows.options.read_threads)

    def _check(self, states: NDArray[np.int64], error: Exception | None) -> None:
        """Ends all ranks alike where one could not read, or ends."""
        if (states == _FAILED).any():
            texts = self._group.gather_texts(str(error) if isinstance(error, EmberlineError) else "")
            if error is not None:
                raise error
            rank = int(np.flatnonzero(states == _FAILED)[0])
            if texts[rank]:
                raise InvalidInput(texts[rank], field="data")  # in the same words, which are printed once
            raise RankLost(
                f"rank {rank} could not read rows for all ranks; what it said stands above or in its own log"
            )
        if (states == _ENDS).any():
            rank = int(np.flatnonzero(states == _ENDS)[0])
            raise RankLost(f"rank {rank} has ended; what it said stands above or in its own log")


class _Places:
    """Says to which ranks the rows of a window go, and in which order this rank sees its own."""

    def __init__(self, stream: RowStream, epoch: int, window: Window, skipped: int, rank: int) -> None:
        skip = max(0, skipped - window.before)
        order = stream.order(epoch, window)[skip:]
        owners = stream.owners(window.before + skip, window.before + window.rows)
        by_row = np.full(window.rows, -1, np.int16)
        by_row[order] = owners
        ends = np.cumsum([block.rows for block in window.blocks])
        #: The rank that sees each row, by block; -1: it was seen before.
        self.of_blocks = np.split(by_row, ends[:-1])
        own = order[owners == rank]
        sorted_places = np.argsort(own)
        #: The order of this rank, (N,), in its rows as they were read.
        self.own = np.empty_like(own)
        self.own[sorted_places] = np.arange(len(own))
        found = np.searchsorted(own[sorted_places], ends)
        #: Rows of this rank in each block.
        self.counts = np.diff(found, prepend=0).tolist()


def _rounds(windows: Iterable[Window], ranks: int) -> list[_Round]:
    """Returns the windows in rounds of some blocks for each rank, and of no more windows than ranks.

    So a rank holds about as many rows as one process, which has a window, and the next.
    """
    found: list[_Round] = []
    held: list[Window] = []
    blocks: list[RowBlock] = []
    for window in windows:
        held.append(window)
        blocks += window.blocks
        if len(blocks) >= _BLOCKS * ranks or len(held) == ranks:
            found.append(_Round(tuple(held), tuple(blocks)))
            held, blocks = [], []
    return [*found, _Round(tuple(held), tuple(blocks))] if held else found


def _in_order(came: list[Any], readers: list[int], places: list[_Places], schema: Any) -> Any:
    """Returns the rows of this rank in a round as it sees them. came: what each rank has read of them, by block."""
    at = [0] * len(came)
    parts = [schema.empty_table()]
    counts = [rows for window in places for rows in window.counts]
    for reader, rows in zip(readers, counts, strict=True):
        if rows:
            parts.append(came[reader].slice(at[reader], rows))
            at[reader] += rows
    starts = np.cumsum([0, *(len(window.own) for window in places)])
    order = np.concatenate([window.own + start for window, start in zip(places, starts, strict=False)])
    table = pa.concat_tables(parts)
    return table if (np.diff(order) == 1).all() else taken(table, order)
