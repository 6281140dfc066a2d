"""The rows of a run as batches, which threads read and compute ahead of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, count, islice
from typing import Any

from storage.features import Column
from trainer.config import TrainConfig
from trainer.data import (
    TOGETHER_ROWS,
    Batch,
    BatchMaker,
    DataRows,
    Dealer,
    DeviceBatches,
    Prefetcher,
    RowStream,
    SharedReading,
    Split,
    located,
    mapped,
)
from trainer.rank_group import RankGroup
from trainer.ranks import Ranks, Traffic
from trainer.step_profile import StepProfile


class BatchFlow:
    """Makes the batches of a run. profile: gets the work of the stages that run ahead, and what the step waits.

    ranks: those that train on the batches together, each on its rows, and call `ahead` together. device: where batches
    are sent ahead of their step. traffic: gets the bytes of rows that ranks read for each other.
    """

    def __init__(
        self,
        config: TrainConfig,
        rows: DataRows,
        profile: StepProfile,
        ranks: Ranks | None = None,
        device: DeviceBatches | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.maker = BatchMaker(config.spec, config.targets, config.training.time_column)
        self._training = config.training
        self._rows = rows
        self._profile = profile
        self._ranks = ranks or Ranks()
        self._split = Split(self._ranks.rank, self._ranks.size)
        self._device = device
        self._traffic = traffic or Traffic()
        self._group: RankGroup | None = None
        self._dealer = Dealer(self._ranks.size)

    def stream(self, *, in_order: bool) -> RowStream:
        """Returns the rows in the order in which a training sees them, or an update, which keeps theirs."""
        training = self._training
        if in_order:
            return RowStream(self._rows, training.batch_size, split=self._split)
        window = training.shuffle_rows if training.shuffle else None
        return RowStream(self._rows, training.batch_size, shuffle_rows=window, seed=training.seed, split=self._split)

    def rows_of(self, batch: int) -> int:
        """Returns the rows of a batch, those of all ranks together."""
        size = self._training.batch_size
        return min(size, self._rows.rows - batch * size)

    @contextmanager
    def ahead(self, stream: RowStream, epoch: int, first_batch: int) -> Iterator[Iterator[Batch]]:
        """Makes the batches of an epoch from `first_batch` on; the threads end with the block."""
        profile, size = self._profile, stream.own_batch_size
        together = max(1, TOGETHER_ROWS // size)
        numbers = count(first_batch, together)
        make = located(profile.working("features", lambda table: self._made(table, size)), stream, epoch)
        with ExitStack() as stack:
            shared = self._shared(stream, epoch, first_batch, together)
            if shared is None:
                windows = Prefetcher(profile.timed("read", stream.windows(epoch, skip_batches=first_batch)), depth=1)
            else:
                stack.enter_context(shared)
                windows = Prefetcher(shared.tables(lambda: profile.stage("read")), depth=shared.rounds)
            tables = zip(numbers, stream.cut(stack.enter_context(windows), together), strict=False)
            made = stack.enter_context(Prefetcher(mapped(make, tables, self._training.feature_threads), depth=2))
            batches: Iterator[Batch] = chain.from_iterable(made)
            if shared is not None:
                stack.callback(shared.stop)
                batches = shared.permitting(batches)
            yield profile.timed("wait", batches)

    def _shared(self, stream: RowStream, epoch: int, first_batch: int, together: int) -> SharedReading | None:
        """Returns how several ranks read together; None where each has all rows. together: batches made at once."""
        if not self._ranks.are_several or self._rows.are_in_memory:
            return None
        if self._group is None:
            self._group = RankGroup(self._ranks, self._traffic)
        # Each thread that makes features holds a table, and so do the stages around them.
        lookahead = together * (self._training.feature_threads + 4)
        return SharedReading(stream, epoch, first_batch, self._group, self._dealer, lookahead)

    def _made(self, table: Any, size: int) -> list[Batch]:
        batches = self.maker.batches(table, size)
        return batches if self._device is None else [self._device.sent(batch) for batch in batches]

    def columns_before(self, stream: RowStream, epoch: int, batch: int, wanted: int) -> Iterator[dict[str, Column]]:
        """Yields the raw columns of at least `wanted` rows before a batch, if there are so many, oldest first."""
        size = self._training.batch_size
        parts: list[tuple[int, int, int]] = []
        while wanted > 0 and epoch >= 0:
            first = max(0, batch - -(-wanted // size) - 1)  # one more, because an epoch's last batch may be short
            parts.append((epoch, first, batch))
            wanted -= min(batch * size, self._rows.rows) - first * size
            epoch, batch = epoch - 1, stream.batches
        for epoch, first, end in reversed(parts):
            for table in islice(stream.epoch(epoch, skip_batches=first), end - first):
                yield self.maker.columns(table)
