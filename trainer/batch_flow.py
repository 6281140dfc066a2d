"""The rows of a run as batches, which threads read and compute ahead of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count, islice
from typing import Any

from storage.features import Column
from trainer.config import TrainConfig
from trainer.data import (
    TOGETHER_ROWS,
    Batch,
    BatchMaker,
    DataRows,
    DeviceBatches,
    Prefetcher,
    RowStream,
    Split,
    located,
    mapped,
)
from trainer.step_profile import StepProfile


class BatchFlow:
    """Makes the batches of a run. profile: gets the work of the stages that run ahead, and what the step waits.

    split: the rows of each batch that this process trains on. device: where they are sent ahead of their step.
    """

    def __init__(
        self,
        config: TrainConfig,
        rows: DataRows,
        profile: StepProfile,
        split: Split | None = None,
        device: DeviceBatches | None = None,
    ) -> None:
        self.maker = BatchMaker(config.spec, config.targets, config.training.time_column)
        self._training = config.training
        self._rows = rows
        self._profile = profile
        self._split = split
        self._device = device

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
        windows = stream.windows(epoch, skip_batches=first_batch)
        together = max(1, TOGETHER_ROWS // size)
        numbers = count(first_batch, together)
        make = located(profile.working("features", lambda table: self._made(table, size)), stream, epoch)
        with (
            Prefetcher(profile.timed("read", windows), depth=1) as read,
            Prefetcher(
                mapped(make, zip(numbers, stream.cut(read, together), strict=False), self._training.feature_threads),
                depth=2,
            ) as made,
        ):
            yield profile.timed("wait", chain.from_iterable(made))

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
