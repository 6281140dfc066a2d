"""Chooses the rows of tables that a GPU keeps in its own memory: those that training has seen most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.devices import Transfers
from trainer.embedding.hbm_group import HbmGroup, HostTable, Ids

Counts = NDArray[np.uint32]

# Rows are chosen before the first step if there are any, after so many steps, and after twice as many each time.
_FIRST_STEPS = 100
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class HbmFigures:
    """Says what a GPU keeps of the tables, and how much of the batches it was."""

    rows: int
    memory_bytes: int
    #: Different rows of all batches so far, and those of them that the GPU kept.
    looked_up: int
    hits: int

    def line(self) -> str:
        """The figures on one line."""
        share = self.hits / self.looked_up if self.looked_up else 0.0
        size = f"{self.rows:,} rows in the memory of the GPU ({self.memory_bytes / 2**20:,.1f} MiB)"
        return f"{size}, {share:.1%} of the different rows of batches"


class HbmRows:
    """Keeps rows of `tables` on a GPU, at most `hbm_bytes` with their optimizer values.

    tables: those of one optimizer. by: the transfers of the GPU. Rows are chosen anew from time to time, by how often
    training has seen them. A row gets the same bits on either side, so it does not matter which are kept.
    """

    def __init__(self, tables: Iterable[HostTable], hbm_bytes: int, device: torch.device, by: Transfers) -> None:
        self._tables = list(tables)
        self._bytes = hbm_bytes
        self._device = device
        self._by = by
        self._groups: list[HbmGroup] = []
        self._next: int | None = None
        self._interval = _FIRST_STEPS

    def before_step(self, step: int) -> None:
        """Chooses rows if they are due, and no gradients wait for the optimizer. step: steps before this one."""
        if any(table.has_gradients for table in self._tables):
            return
        if self._next is None:
            self._next = step + self._interval
            if any(table.size() for table in self._tables):
                self.choose()
        elif step >= self._next:
            self._interval = min(2 * self._interval, _MOST_STEPS)
            self._next = step + self._interval
            self.choose()

    def choose(self) -> None:
        """Keeps the rows that training has seen most from now on, and writes the others back.

        It is called between the optimizer's step and the lookups of the next one.
        """
        self.settle()
        shapes: dict[tuple[int, int], list[HostTable]] = {}
        for table in self._tables:
            own = shapes.setdefault((table.dim, table.slots), [])
            # Tables that took other numbers of steps correct the moments of Adam by other factors.
            if table.may_leave_host and (not own or own[0].steps == table.steps):
                own.append(table)
        groups = [tables for tables in shapes.values() if tables]
        if [group.tables for group in self._groups] != groups:
            for table in self._tables:
                table.keep_on(None)
            self._groups = [HbmGroup(tables, self._device, self._by) for tables in groups]
        chosen = self._wanted([table for tables in groups for table in tables])
        wanted = [(group, [chosen[table] for table in group.tables]) for group in self._groups]
        if sum(group.bytes_with(ids) for group, ids in wanted) > self._bytes:
            for group, ids in wanted:
                if group.bytes_with(ids) > group.bytes_of(ids):
                    group.clear()  # its matrix has room that another one needs
        for group, ids in wanted:
            group.keep(ids)

    def settle(self) -> None:
        """Writes back what has changed."""
        for group in self._groups:
            group.settle()

    def figures(self) -> HbmFigures:
        """Returns what is kept now, and how often it was used."""
        return HbmFigures(
            sum(group.size() for group in self._groups),
            sum(group.memory_bytes for group in self._groups),
            sum(group.looked_up for group in self._groups),
            sum(group.hits for group in self._groups),
        )

    def _wanted(self, tables: Sequence[HostTable]) -> dict[HostTable, Ids]:
        """Returns the ids (N,) of each table whose rows are to be kept."""
        sizes, ids, counts = [], [], []
        for table in tables:
            sizes.append(4 * (table.dim + table.slots))
            found = table.unsettled.most_seen(self._bytes // sizes[-1])
            ids.append(found[0])
            counts.append(found[1])
            # At once, so that what is left out of one table needs no memory beside the next.
            lengths = most_counted(counts, sizes, self._bytes)
            ids = [own[:length].copy() for own, length in zip(ids, lengths, strict=True)]
            counts = [own[:length].copy() for own, length in zip(counts, lengths, strict=True)]
        return dict(zip(tables, ids, strict=True))


def most_counted(counts: Sequence[Counts], sizes: Sequence[int], most_bytes: int) -> list[int]:
    """Returns how many of the first rows of each table are those with the largest counts that fit together.

    counts: by table, descending. sizes: bytes of a row. A use of a row saves as many bytes as it takes, whatever its
    dim. Equal counts come in the order of the tables.
    """
    largest = int(max((own[0] for own in counts if len(own)), default=0))

    def lengths_from(count: int) -> list[int]:
        if count > largest:
            return [0] * len(counts)
        return [len(own) - int(np.searchsorted(own[::-1], np.uint32(count))) for own in counts]

    def bytes_of(lengths: Sequence[int]) -> int:
        return sum(size * length for size, length in zip(sizes, lengths, strict=True))

    low, high = 0, largest + 1  # rows from `high` on fit
    while low < high:
        middle = (low + high) // 2
        if bytes_of(lengths_from(middle)) <= most_bytes:
            high = middle
        else:
            low = middle + 1
    lengths = lengths_from(high)
    if high == 0:
        return lengths
    left = most_bytes - bytes_of(lengths)
    for number, (size, upto) in enumerate(zip(sizes, lengths_from(high - 1), strict=True)):
        more = min(upto - lengths[number], left // size)
        is_full = more < upto - lengths[number]
        lengths[number] += more
        left -= more * size
        if is_full:
            break
    return lengths
