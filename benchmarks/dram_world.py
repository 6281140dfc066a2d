"""Makes rows in DRAM for the benchmarks: tables whose rows hold their own number, and batches of ids that look them up.

N rows, D dim, K batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.traffic import BATCH, Array, Traffic
from loadtest.popularity import Popularity, uniform, zipf
from storage._table import Lookup, Table

_CHUNK_ROWS = 1 << 18
BATCHES = 160
# Twenty-six features, as in Criteo's data, of 512 samples.
FEATURES = 26


def filled_table(ids: Array, dim: int, *, capacity_rows: int = 0) -> Table:
    """Returns a table in which the row of ids[i] holds the value i in all D columns."""
    table = Table(dim, capacity_rows=capacity_rows)
    table.reserve(len(ids))
    for start in range(0, len(ids), _CHUNK_ROWS):
        chunk = ids[start : start + _CHUNK_ROWS]
        table.insert_or_assign(chunk, rows_of_numbers(np.arange(start, start + len(chunk)), dim))
    return table


def most_bytes(rows: int, dim: int) -> int:
    """Estimates the peak memory: our rows, those of two peers, an index, and 1 GiB for everything small."""
    return 3 * rows * dim * 4 + 40 * rows + (1 << 30)


def rows_of_numbers(numbers: Array, dim: int) -> Array:
    """Returns (n, D) float32: each row is filled with its number."""
    return np.repeat(numbers.astype(np.float32), dim).reshape(len(numbers), dim)


@dataclass(frozen=True)
class Batches:
    """The same lookups twice, both (K, n): as dense row numbers, for peers that need no index, and as ids."""

    name: str
    numbers: Array
    ids: Array

    @property
    def size(self) -> int:
        """The number of ids in a batch."""
        return int(self.ids.shape[1])

    def __len__(self) -> int:
        return len(self.ids)


def popularities(rows: int) -> list[Popularity]:
    """Returns the uniform and the Zipf distribution."""
    return [uniform(rows), zipf(rows)]


def draw(ids: Array, popularity: Popularity, *, count: int = BATCHES, size: int = BATCH, seed: int = 2) -> Batches:
    """Draws batches over ids (N,); the popularity's count is N."""
    numbers = Traffic(popularity, seed).batches(count, size)
    return Batches(popularity.name, numbers, ids[numbers])


def finder(table: Table, batches: Batches, *, fresh_output: bool = False) -> Callable[[int], object]:
    """Returns a function that finds batch `turn`, into one reused output or, as torch does, into a new one each time.

    Not thread-safe: one thread calls it at a time.
    """
    out = np.empty((batches.size, table.dim), np.float32)
    found = np.empty(batches.size, np.uint8)
    count = len(batches)
    if not fresh_output:
        return lambda turn: table.find(batches.ids[turn % count], out, found)

    def find(turn: int) -> object:
        rows = np.empty((batches.size, table.dim), np.float32)
        flags = np.empty(batches.size, np.uint8)
        table.find(batches.ids[turn % count], rows, flags)
        return rows

    return find


def check_table(table: Table, batches: Batches) -> None:
    """Raises AssertionError unless the lookup of the first batch returns the right rows."""
    out = np.empty((batches.size, table.dim), np.float32)
    found = np.empty(batches.size, np.uint8)
    if table.find(batches.ids[0], out, found) != batches.size or not np.array_equal(
        out, rows_of_numbers(batches.numbers[0], table.dim)
    ):
        raise AssertionError("a lookup gave other rows than were put in: the figures would mean nothing")


class FeatureLookup:
    """One call for many features, a table for each, with sums over bags of one size. B samples."""

    def __init__(self, tables: list[Table], batches: list[Batches], per_bag: int = 1) -> None:
        self.lookup = Lookup(list(tables), [(index, 0, 0) for index in range(len(tables))])
        self.dim = tables[0].dim
        self.samples = batches[0].size // per_bag
        self.offsets = [np.arange(0, batches[0].size + 1, per_bag)] * len(tables)
        self.masks: list[Array | None] = [None] * len(tables)
        self.values = [list(parts) for parts in zip(*(each.ids for each in batches), strict=True)]

    def run(self, turn: int) -> list[Array]:
        """Looks up batch `turn`; returns a new output (B, D) for each feature."""
        out = list(np.empty((len(self.offsets), self.samples, self.dim), np.float32))
        values = self.values[turn % len(self.values)]
        missing = self.lookup.begin(self.samples, values, self.offsets, out, list(self.masks))
        if missing:
            raise AssertionError(f"{missing} ids are missing that were put in")
        self.lookup.finish()
        return out
