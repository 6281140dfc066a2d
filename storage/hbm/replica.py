"""A replica is a GPU's copy of a cache: index buckets, rows by slot and marks of use, a slab for each row size.

The authoritative index is the host's (`GpuCache`); `publisher` brings its changes here.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage._table import GpuCache
from storage.errors import ConfigError
from storage.hbm.device import Device
from storage.hbm.kernel_sources import ROW_TYPES
from storage.specs import TableSpec, encoded_bytes
from storage.tiers.arrays import Flags, Ids

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("emberline.storage")

# Snapshots beside the base that a GPU can answer for at once; the length of the kernels' chain.
MOST_DIFFERENCES = 8
BUCKET_BYTES = 64
# A cache for all rows has room for another 1 / SPARE of them, for the rows that differ between two snapshots.
SPARE = 4
# Every USE_EVERY-th lookup marks its row.
USE_EVERY = 8

_MOST_ROWS = (1 << 31) - 2
_MOST_TABLES = 65536
_generations = itertools.count(1)


@dataclass(frozen=True)
class GpuSlab:
    """Tables of one row size on the GPU."""

    cache: GpuCache
    members: tuple[int, ...]
    row_bytes: int
    #: Bytes from row to row.
    stride: int
    #: Index buckets in device memory.
    buckets: torch.Tensor
    #: Rows in device memory.
    rows: torch.Tensor
    #: Marks of use in device memory.
    uses: torch.Tensor

    @property
    def device_bytes(self) -> int:
        """The bytes of GPU memory that it takes."""
        return self.buckets.nbytes + self.rows.nbytes + self.uses.nbytes

    def pieces(self, count: int) -> Iterator[slice]:
        """Yields slices of `count` rows that fit into one set each.

        Slots that are released in a set are free only when it is complete.
        """
        start = 0
        while start < count:
            end = min(count, start + max(1, self.cache.free_slots))
            yield slice(start, end)
            start = end


class Replica:
    """Holds all slabs of one store on one GPU. It is immutable except for their contents.

    `generation` identifies the addresses; a lookup's table of features is rewritten when it changes. `base_tables` is
    the number of tables of the store; a difference's rows of table t lie under t + number * base_tables. `use_every`:
    see the kernels.
    """

    def __init__(self, device: Device, tables: Sequence[TableSpec], hbm_bytes: int) -> None:
        """Allocates the slabs. hbm_bytes: bytes that buckets, rows and marks may take together.

        Raises ConfigError, DeviceError.
        """
        count = len(tables)
        if count * (MOST_DIFFERENCES + 1) > _MOST_TABLES:
            most = _MOST_TABLES // (MOST_DIFFERENCES + 1)
            raise ConfigError(
                f"hbm_bytes: a GPU's cache is for at most {most} tables, the model has {count}; set it to 0",
                field="hbm_bytes",
            )
        self.tables = tuple(tables)
        self.base_tables = count
        self.generation = next(_generations)
        self.use_every = USE_EVERY
        self.slabs: list[GpuSlab] = []
        self._slab_of: list[GpuSlab] = []
        by_size: dict[int, list[int]] = {}
        for index, spec in enumerate(tables):
            by_size.setdefault(encoded_bytes(spec.row_type, spec.dim), []).append(index)
        wanted = {size: sum(tables[index].rows for index in members) for size, members in by_size.items()}
        check_rows(self.tables, wanted)
        capacities = divide(hbm_bytes, wanted)
        for size, members in by_size.items():
            self.slabs.append(_slab(device, size, tuple(members), capacities[size], count))
        of = {index: slab for slab in self.slabs for index in slab.members}
        self._slab_of = [of[index] for index in range(count)]
        self.shared = tuple(part for slab in self.slabs for part in (slab.buckets, slab.rows, slab.uses))

    def slab(self, table: int) -> GpuSlab:
        """Returns the slab that holds the rows of a table."""
        return self._slab_of[table]

    def words(self, table: int) -> list[int]:
        """Returns the first words of a feature of this table: buckets, their number, slab, highest slot, stride, row
        type, dim, table, use marks (cuda/lookup.cuh).
        """
        slab, spec = self._slab_of[table], self.tables[table]
        return [
            slab.buckets.data_ptr(),
            slab.cache.bucket_count,
            slab.rows.data_ptr(),
            slab.cache.slots,
            slab.stride,
            ROW_TYPES[spec.row_type],
            spec.dim,
            table,
            slab.uses.data_ptr(),
        ]

    def virtual(self, table: int, number: int) -> int:
        """Returns the table number of a difference's rows; number 0 is the base."""
        return table + number * self.base_tables

    @property
    def device_bytes(self) -> int:
        """The bytes of GPU memory that it takes."""
        return sum(slab.device_bytes for slab in self.slabs)

    def hot_ids(self, most: int | None = None) -> Iterator[tuple[int, Ids, Flags]]:
        """Yields by table the base's ids, hottest first, with use counts; about `most` ids in all at most."""
        rows = sum(slab.cache.size() for slab in self.slabs)
        for slab in self.slabs:
            size = slab.cache.size()
            share = size if most is None or rows <= most else most * size // rows
            tables, ids, counts = slab.cache.hot_ids(max(1, share), self.base_tables)
            for table in slab.members:
                own = tables == table
                yield table, ids[own], counts[own]

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory that the indexes take."""
        return sum(slab.cache.memory_bytes() for slab in self.slabs)


def check_rows(tables: Sequence[TableSpec], rows: Mapping[int, int]) -> None:
    """Raises ConfigError where every table has no rows: the cache would hold one row and miss nearly every id.

    rows: number of rows, by bytes of a row; a size with none is logged.
    """
    if tables and not any(rows.values()):
        raise ConfigError(
            f"hbm_bytes: none of the {len(tables)} tables says how many rows it has, so the cache would hold one row; "
            "give TableSpec.rows, or set hbm_bytes to 0",
            field="hbm_bytes",
        )
    for size, count in rows.items():
        if count == 0:
            logger.warning(
                "hbm_bytes: the cache for rows of %d bytes holds 1 row: their tables say they have none", size
            )


def stride_of(row_bytes: int) -> int:
    """Returns the bytes from row to row on a GPU: loads of 16 bytes where a row has that many."""
    return row_bytes if row_bytes < 16 else -(-row_bytes // 16) * 16


def bytes_of(row_bytes: int, capacity_rows: int) -> int:
    """Returns the GPU memory of a cache for that many rows, to within a thousandth."""
    slots = capacity_rows + max(64, capacity_rows * 3 // 100) + 1
    buckets = max(2, (capacity_rows + 2) // 3)
    return buckets * BUCKET_BYTES + slots * (stride_of(row_bytes) + 1)


def divide(hbm_bytes: int, rows: dict[int, int]) -> dict[int, int]:
    """Divides memory into capacities in rows, by bytes of a row.

    rows: number of rows of each size; a size gets memory in proportion to its bytes, at most for all its rows and some
    spare, at least for one row.
    """
    least = {size: bytes_of(size, 1) for size in rows}
    left = max(0, hbm_bytes - sum(least.values()))
    capacities: dict[int, int] = {}
    wanted = {size: bytes_of(size, max(1, count)) for size, count in rows.items()}
    total = sum(wanted.values())
    # The sizes that take the fewest bytes come first: what they do not need is left to the others.
    for size in sorted(rows, key=lambda size: wanted[size]):
        share = left * wanted[size] // max(1, total)
        most = max(1, rows[size] + rows[size] // SPARE)
        capacities[size] = min(most, _capacity(size, least[size] + share), _MOST_ROWS)
        left -= bytes_of(size, capacities[size]) - least[size]
        total -= wanted[size]
    return capacities


def _capacity(row_bytes: int, size: int) -> int:
    low, high = 1, max(1, size // (stride_of(row_bytes) + 1))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_of(row_bytes, middle) <= size else (low, middle - 1)
    return low


def _slab(device: Device, row_bytes: int, members: tuple[int, ...], capacity: int, tables: int) -> GpuSlab:
    cache = GpuCache(row_bytes, capacity, tables * (MOST_DIFFERENCES + 1))
    stride = stride_of(row_bytes)
    slots = cache.slots + 1
    return GpuSlab(
        cache,
        members,
        row_bytes,
        stride,
        device.device(cache.bucket_count * BUCKET_BYTES),
        device.device(slots * stride),
        device.device(slots),
    )
