"""Bounds the DRAM of a training's tables: one budget, one store on SSD for the rest, rows read one batch ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage._table import TrainingTable
from storage.paths import local_path
from storage.tiers.training.budget import RowBudget
from storage.tiers.training.export import TieredTrainingTable
from storage.tiers.training.store import TrainingStore

Ids = NDArray[np.int64]
_Batch = TypeVar("_Batch")


@dataclass(frozen=True)
class MemoryFigures:
    """Memory and row traffic of all tables together."""

    dram_bytes: int
    #: Bytes of DRAM in use, of dram_bytes at most.
    memory_bytes: int
    rows_in_dram: int
    rows_on_ssd: int
    #: Bytes of the store on SSD.
    ssd_bytes: int
    #: Rows brought from SSD for a batch.
    rows_fetched: int
    #: Rows of `rows_fetched` that were read before their batch began.
    rows_ahead: int
    #: Rows written to SSD.
    rows_written: int

    @property
    def ahead(self) -> float:
        """The share of the rows fetched that no batch waited for; 1 when none was fetched."""
        return self.rows_ahead / self.rows_fetched if self.rows_fetched else 1.0

    def short(self) -> str:
        """The text that a progress bar shows."""
        share = self.rows_in_dram / max(1, self.rows_in_dram + self.rows_on_ssd)
        return f"{share:.0%} in DRAM, {self.ahead:.0%} read ahead" if self.rows_on_ssd else "all in DRAM"

    def line(self) -> str:
        """The figures on one line."""
        line = f"{self.rows_in_dram:,} rows in DRAM ({self.memory_bytes / 2**20:,.1f} MiB)"
        if not self.rows_on_ssd and not self.rows_fetched:
            return line
        line += f", {self.rows_on_ssd:,} on SSD ({self.ssd_bytes / 2**20:,.1f} MiB)"
        return f"{line}, {self.rows_fetched:,} fetched, {self.ahead:.1%} ahead of their batch"


class RowMemory:
    """Lets tables take `dram_bytes` together; what does not fit lies in a store under `folder`.

    dram_bytes: bound on rows, optimizer values, index and counts. folder: the run's; the store is made with the first
    row that leaves DRAM, and removed by close(), by the end of the process, or, after a crash, by the next one. Tables
    join before any of them is used. Every result is the same as with all rows in DRAM, to the bit. Close it after its
    tables.
    """

    def __init__(self, dram_bytes: int, folder: Path) -> None:
        self._budget = RowBudget(dram_bytes)
        self._store = TrainingStore(local_path(folder, "folder"))
        self._tables: dict[str, TieredTrainingTable] = {}
        self._reader: ThreadPoolExecutor | None = None
        self._reading: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends reading and removes the store; the tables cannot be used any more."""
        if self._reader is not None:
            self._reader.shutdown()
            self._reader = None
        self._store.close()

    def table(self, name: str, native: TrainingTable, *, evicts_by_age: bool = True) -> TieredTrainingTable:
        """Returns a table under this budget. native: its rows in DRAM, made with tiered=True and empty.

        evicts_by_age: whether its rows are evicted when they were not used for long. Raises ConfigError when the budget
        does not hold the table's filter.
        """
        table = TieredTrainingTable(
            name, len(self._tables), native, store=self._store, budget=self._budget, evicts_by_age=evicts_by_age
        )
        self._tables[name] = table
        return table

    def held(self, batches: Iterable[_Batch], ids_of: Callable[[_Batch], Mapping[str, Ids]]) -> Iterator[_Batch]:
        """Yields the batches, each with its rows in DRAM; those of the next one are read from SSD meanwhile.

        ids_of: returns the ids that a batch looks up, by table. Raises ConfigError for a batch that the budget does not
        hold.
        """
        iterator = iter(batches)
        batch = next(iterator, None)
        wanted = {} if batch is None else ids_of(batch)
        while batch is not None:
            self._hold(wanted)
            following = next(iterator, None)
            if following is not None:
                wanted = ids_of(following)
                self._read_ahead(wanted)
            yield batch
            batch = following

    def figures(self) -> MemoryFigures:
        """Returns how many rows and bytes lie where, and how many rows moved."""
        tables = self._tables.values()
        ahead = sum(table.traffic.fetched_ahead for table in tables)
        return MemoryFigures(
            dram_bytes=self._budget.dram_bytes,
            memory_bytes=sum(table.memory_bytes() for table in tables),
            rows_in_dram=sum(table.native.size() for table in tables),
            rows_on_ssd=sum(table.rows_outside for table in tables),
            ssd_bytes=self._store.size_bytes(),
            rows_fetched=ahead + sum(table.traffic.fetched_late for table in tables),
            rows_ahead=ahead,
            rows_written=sum(table.traffic.written for table in tables),
        )

    def _hold(self, wanted: Mapping[str, Ids]) -> None:
        if self._reading is not None:
            reading, self._reading = self._reading, None
            reading.result()
        for name, ids in wanted.items():
            self._tables[name].hold(ids)

    def _read_ahead(self, wanted: Mapping[str, Ids]) -> None:
        if self._store.is_empty:
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows-ahead")
        self._reading = self._reader.submit(self._stage, wanted)

    def _stage(self, wanted: Mapping[str, Ids]) -> None:
        for name, ids in wanted.items():
            self._tables[name].stage(ids)
