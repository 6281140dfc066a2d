"""A stream that several ranks follow: the first one reads it, and each trains on its part of every batch.

Which rows come when depends on the clock, so the first rank tells the others what has come, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage.data.streams import Position
from storage.errors import InvalidInput
from trainer.config import TrainConfig
from trainer.data import BatchMaker, DeviceBatches, Split, first_at_fault
from trainer.follow_flow import Chunk, FollowFlow, Idle, Taken
from trainer.ranks import Ranks, Traffic
from trainer.step_profile import StepProfile


@dataclass(frozen=True)
class _Sent:
    """Batches on their way to the other ranks: rows as an Arrow stream."""

    rows: bytes
    ends: list[int]
    positions: list[Position]


class SharedFlow:
    """Makes this rank's part of the batches of a stream, the same batches at all ranks.

    flow: reads the stream, at the first rank. device: where batches are sent ahead of their step. reading: counts the
    bytes of the rows.
    """

    def __init__(
        self,
        ranks: Ranks,
        config: TrainConfig,
        profile: StepProfile,
        flow: FollowFlow | None,
        device: DeviceBatches,
        reading: Traffic,
    ) -> None:
        self._ranks = ranks
        self._reading = reading
        self._config = config
        self._maker = BatchMaker(config.spec, config.targets, config.training.time_column)
        self._profile = profile
        self._flow = flow
        self._device = device
        self._split = Split(ranks.rank, ranks.size)

    @contextmanager
    def ahead(self) -> Iterator[Iterator[Taken | Idle]]:
        """Yields as `FollowFlow.ahead` does, the same at all ranks, which take each item together."""
        read = nullcontext(None) if self._flow is None else self._flow.chunks_ahead()
        with read as chunks, ThreadPoolExecutor(1, thread_name_prefix="features") as maker:
            yield self._items(chunks, maker)

    def take_rest(self) -> None:
        """Has the rows that make no whole batch come as a smaller one."""
        if self._flow is not None:
            self._flow.take_rest()

    def _items(self, chunks: Iterator[Chunk | Idle] | None, maker: ThreadPoolExecutor) -> Iterator[Taken | Idle]:
        make = self._profile.working("features", self._own_part)
        ahead: Future[Taken] | None = None
        while True:
            item = self._ranks.from_first(None if chunks is None else self._told(next(chunks)))
            self._count(item)
            coming = maker.submit(make, item) if isinstance(item, _Sent) else None
            if ahead is not None:
                yield ahead.result()
            ahead = coming
            if isinstance(item, Idle):
                yield item

    def _count(self, item: _Sent | Idle | None) -> None:
        if isinstance(item, _Sent):
            size, others = len(item.rows), self._ranks.size - 1
            self._reading.add("data", *((size * others, 0) if self._ranks.is_first else (0, size)))

    def _told(self, item: Chunk | Idle) -> _Sent | Idle:
        """Returns what the others hear of an item of the first rank."""
        if isinstance(item, Idle):
            return item
        assert self._flow is not None
        self._flow.keep_recent(item.table)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, item.table.schema) as stream:
            stream.write_table(item.table)
        return _Sent(sink.getvalue().to_pybytes(), item.ends, item.positions)

    def _own_part(self, item: _Sent) -> Taken:
        table = pa.ipc.open_stream(item.rows).read_all()
        own, sizes = [], []
        for start, end in zip([0, *item.ends], item.ends, strict=False):
            first, last = self._split.bounds(end - start)
            own.append(table.slice(start + first, last - first))
            sizes.append(end - start)
        first, last = self._split.bounds(self._config.training.batch_size)
        rows = pa.concat_tables(own)
        try:
            batches = self._maker.batches(rows, last - first)
            if len(batches) < len(sizes):  # the last one has fewer rows than there are ranks
                batches.append(self._maker.batch(rows.slice(0, 0)))
        except InvalidInput as error:
            row, alone = first_at_fault(lambda part: self._maker.batches(part, last - first), rows)
            if row is None:
                raise
            raise InvalidInput(f"a row of the stream that came lately: {alone or error}", field=error.field) from error
        made = [replace(batch, whole_rows=size) for batch, size in zip(batches, sizes, strict=True)]
        times = self._maker.times_ms(table) if self._ranks.is_first else None
        if times is not None:
            parts = np.split(times, item.ends[:-1])
            made = [replace(batch, whole_times_ms=part) for batch, part in zip(made, parts, strict=True)]
        return Taken([self._device.sent(batch) for batch in made], item.positions)
