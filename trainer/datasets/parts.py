"""A data set as three Parquet files in the order of time, written so that a broken run leaves none half done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import ConfigError
from storage.paths import local_path

PARTS = ("train", "valid", "test")
DATASET = "dataset.json"
ROW_GROUP = 100_000


@dataclass(frozen=True)
class DatasetReport:
    """Report of a data set that was written."""

    directory: Path
    #: Number of rows of each part.
    rows: Mapping[str, int]
    #: Known facts about the data, also in dataset.json.
    facts: Mapping[str, Any] = field(default_factory=dict)


def part_bounds(rows: int) -> dict[str, tuple[int, int]]:
    """Returns part -> (first row, end row): 80%, 10%, 10%. Raises ConfigError below 10 rows."""
    if rows < 10:
        raise ConfigError(f"rows is {rows}; at least 10 are needed for three parts", field="rows")
    first, second = rows * 8 // 10, rows * 9 // 10
    return {"train": (0, first), "valid": (first, second), "test": (second, rows)}


class PartWriter:
    """Takes tables in the order of time and cuts them into the three files. `close` puts them in place."""

    def __init__(self, directory: Path, rows: int, schema: Any) -> None:
        self.directory = local_path(directory, "directory")
        self.bounds = part_bounds(rows)
        self._schema = schema
        self._at = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._writers = {part: pq.ParquetWriter(self._partial(part), schema) for part in PARTS}
        except OSError as error:
            raise ConfigError(f"{directory}: cannot be written: {error}; name another folder", field="DIR") from None

    def write(self, table: Any) -> None:
        """Appends rows."""
        for part, (start, stop) in self.bounds.items():
            first, last = max(start - self._at, 0), min(stop - self._at, table.num_rows)
            if first < last:
                self._writers[part].write_table(table.slice(first, last - first), row_group_size=ROW_GROUP)
        self._at += table.num_rows

    def close(self, facts: Mapping[str, Any]) -> DatasetReport:
        """Renames the files to their names and writes dataset.json beside them."""
        for part in PARTS:
            self._writers[part].close()
            os.replace(self._partial(part), self.directory / f"{part}.parquet")
        rows = {part: stop - start for part, (start, stop) in self.bounds.items()}
        content = json.dumps({"rows": rows, **facts}, indent=1)
        (self.directory / DATASET).write_text(content + "\n", encoding="utf-8")
        return DatasetReport(self.directory, rows, facts)

    def _partial(self, part: str) -> Path:
        return self.directory / f".{part}.parquet.partial"


def write_all(
    directory: Path,
    rows: int,
    tables: Iterable[Any],
    facts: Mapping[str, Any],
    last_facts: Callable[[], Mapping[str, Any]] = dict,
) -> DatasetReport:
    """Writes tables of one schema, in the order of time, as the three parts.

    last_facts: facts known only at the end.
    """
    writer: PartWriter | None = None
    for table in tables:
        writer = writer or PartWriter(directory, rows, table.schema)
        writer.write(table)
    if writer is None:
        raise ConfigError("the data set has no rows", field="rows")
    return writer.close({**facts, **last_facts()})


def lists(values: Any, offsets: Any) -> Any:
    """Returns a list column from flat values (n,) and offsets (rows + 1,)."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
