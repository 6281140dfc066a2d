"""Bounds the DRAM of a training's tables: one budget, and files on SSD for the rest of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage._table import RowBudget, begin_tables, read_ahead
from storage.paths import local_path
from storage.tiers.training.table import TieredTrainingTable

Ids = NDArray[np.int64]
_Batch = TypeVar("_Batch")
_FIGURES = ("rows_in_dram", "rows_outside", "file_bytes", "fetched", "waits", "written")


@dataclass(frozen=True)
class MemoryFigures:
    """Memory and row traffic of all tables together."""

    dram_bytes: int
    #: Bytes of DRAM in use, of dram_bytes at most.
    memory_bytes: int
    rows_in_dram: int
    rows_on_ssd: int
    #: Bytes of the files on SSD.
    ssd_bytes: int
    #: Rows brought from SSD for a batch.
    rows_fetched: int
    #: Rows of `rows_fetched` whose page the kernel had in memory, so that their batch did not wait for the disk.
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
    """Lets tables take `dram_bytes` together; what does not fit lies in files under `folder`.

    dram_bytes: bound on rows, optimizer values, index and counts. folder: the run's. The file of a table is made when
    its first row leaves DRAM, and has no name: it goes with the table or the process, whatever becomes of that. Tables
    are made before any of them is used. Every result is the same as with all rows in DRAM, to the bit.
    """

    def __init__(self, dram_bytes: int, folder: Path) -> None:
        self._budget = RowBudget(dram_bytes)
        self._folder = local_path(folder, "folder")
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
        """Ends reading ahead."""
        if self._reader is not None:
            self._reader.shutdown()
            self._reader = None

    def table(self, name: str, dim: int, **options: Any) -> TieredTrainingTable:
        """Returns an empty table under this budget. options: as for `storage._table.TrainingTable`.

        Raises ConfigError when the budget does not hold the table's filter.
        """
        table = TieredTrainingTable(name, dim, budget=self._budget, folder=self._folder, **options)
        self._tables[name] = table
        return table

    def held(self, batches: Iterable[_Batch], ids_of: Callable[[_Batch], Mapping[str, Ids]]) -> Iterator[_Batch]:
        """Yields the batches, one after the other; the rows of a batch before may leave DRAM.

        ids_of: returns the ids that a batch looks up, by table. When batches wait for the disk, the kernel is asked for
        those of the next batch meanwhile.
        """
        iterator = iter(batches)
        batch = next(iterator, None)
        tables = list(self._tables.values())
        while batch is not None:
            begin_tables(tables)
            following = next(iterator, None)
            if self._budget.begin_batch() and following is not None:
                self._read_ahead(ids_of(following))
            yield batch
            batch = following

    def figures(self) -> MemoryFigures:
        """Returns how many rows and bytes lie where, and how many rows moved."""
        tables = self._tables.values()
        all_figures = [table.tier_figures() for table in tables]
        total = {name: sum(each[name] for each in all_figures) for name in _FIGURES}
        return MemoryFigures(
            dram_bytes=self._budget.dram_bytes,
            memory_bytes=sum(table.memory_bytes() for table in tables),
            rows_in_dram=total["rows_in_dram"],
            rows_on_ssd=total["rows_outside"],
            ssd_bytes=total["file_bytes"],
            rows_fetched=total["fetched"],
            rows_ahead=max(0, total["fetched"] - total["waits"]),
            rows_written=total["written"],
        )

    def _read_ahead(self, wanted: Mapping[str, Ids]) -> None:
        if self._reading is not None and not self._reading.done():
            return  # a hint that comes too late is worth nothing
        if self._reader is None:
            self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows-ahead")
        self._reading = self._reader.submit(read_ahead, [self._tables[name] for name in wanted], list(wanted.values()))
