"""The rows of tables that a GPU keeps in its own memory and trains there: those that training has seen most.

The table on the host has every row, and counts, admits and evicts them. Of a kept row its values there are old until
they are written back, which whoever reads the table causes (`EmbeddingTable.native`). N ids, D dim, S optimizer values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage._table import KeptIds, TrainingTable
from trainer.devices import Transfers
from trainer.embedding.row_steps import row_squares, stepped_rows

Ids = NDArray[np.int64]
Places = NDArray[np.int32]
_PIECE_BYTES = 64 << 20
# Rows are chosen before the first step if there are any, after so many steps, and after twice as many each time.
_FIRST_STEPS = 100
_MOST_STEPS = 10_000


class HostTable(Protocol):
    """A table of which a GPU keeps rows: `EmbeddingTable`, which has the meaning of each name."""

    dim: int
    may_leave_host: bool

    @property
    def slots(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def unsettled(self) -> TrainingTable: ...
    def size(self) -> int: ...
    def keep_on(self, hbm: HbmTable | None) -> None: ...


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

    by: the transfers of the GPU. Rows are chosen anew from time to time, by how often training has seen them. A row
    gets the same bits on either side, so it does not matter which are kept.
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
        """Chooses rows if they are due. step: steps before this one."""
        if self._next is None:
            self._next = step + self._interval
            if any(table.size() for table in self._tables):
                self.choose()
        elif step >= self._next:
            self._interval = min(2 * self._interval, _MOST_STEPS)
            self._next = step + self._interval
            self.choose()

    def choose(self) -> None:
        """Keeps the rows that training has seen most from now on, and writes the others back."""
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
        wanted = self._wanted([table for tables in groups for table in tables])
        for group in self._groups:
            group.keep([wanted[table] for table in group.tables])

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
        sizes = [4 * (table.dim + table.slots) for table in tables]
        found = [table.unsettled.most_seen(self._bytes // size) for table, size in zip(tables, sizes, strict=True)]
        counts = np.concatenate([counts for _, counts in found]) if found else np.empty(0, np.uint32)
        owners = np.repeat(np.arange(len(tables)), [len(ids) for ids, _ in found])
        # A use of a row saves as many bytes as it takes, whatever its dim.
        order = np.argsort(-counts.astype(np.int64), kind="stable")
        taken = np.cumsum(np.array(sizes, np.int64)[owners[order]]) if len(order) else order
        chosen = np.zeros(len(counts), bool)
        chosen[order[: np.searchsorted(taken, self._bytes, side="right")]] = True
        parts = np.split(chosen, np.cumsum([len(ids) for ids, _ in found])[:-1]) if found else []
        return {table: ids[part] for table, (ids, _), part in zip(tables, found, parts, strict=True)}


class HbmGroup:
    """Kept rows of tables that have one dim and one number of steps: a matrix of rows with their optimizer values."""

    def __init__(self, tables: Sequence[HostTable], device: torch.device, by: Transfers) -> None:
        self.tables = list(tables)
        self.dim = tables[0].dim
        self._width = self.dim + tables[0].slots
        self._device = device
        self._by = by
        #: Rows with their optimizer values by place, (places, D + S).
        self.values = torch.empty((0, self._width), device=device)
        # By place: its table, -1 when it is free, its id, and whether the values on the host are older.
        self._owners = np.empty(0, np.int32)
        self._ids = np.empty(0, np.int64)
        self._changed = np.empty(0, bool)
        self._waiting: list[tuple[Places, Tensor, Tensor]] = []
        self.looked_up = self.hits = 0
        self._kept = [HbmTable(self) for _ in tables]
        for table, kept in zip(tables, self._kept, strict=True):
            table.keep_on(kept)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the GPU that the matrix takes."""
        return self.values.numel() * self.values.element_size()

    def size(self) -> int:
        """Number of rows that are kept."""
        return sum(kept.ids.size() for kept in self._kept)

    def count(self, hits: int, looked_up: int) -> None:
        """Counts the rows of a batch: those that were kept, and all."""
        self.hits += hits
        self.looked_up += looked_up

    def keep(self, wanted: Sequence[Ids]) -> None:
        """Keeps these ids of each table, and no others. All values on the host are up to date."""
        if sum(map(len, wanted)) > len(self._ids):
            # Anew, so that the memory of two matrices is never needed.
            for kept in self._kept:
                kept.ids.clear()
            count = sum(map(len, wanted))
            del self.values
            self.values = torch.empty((count, self._width), device=self._device)
            self._owners, self._ids = np.full(count, -1, np.int32), np.zeros(count, np.int64)
            self._changed = np.zeros(count, bool)
        coming: list[Ids] = []
        for number, (kept, ids) in enumerate(zip(self._kept, wanted, strict=True)):
            own = np.flatnonzero(self._owners == number)
            stays = np.isin(self._ids[own], ids, assume_unique=True)
            kept.ids.erase(self._ids[own[~stays]])
            self._owners[own[~stays]] = -1
            coming.append(np.setdiff1d(ids, self._ids[own[stays]], assume_unique=True))
        free = np.flatnonzero(self._owners < 0)
        for number, (table, ids) in enumerate(zip(self.tables, coming, strict=True)):
            places, free = free[: len(ids)], free[len(ids) :]
            for at in range(0, len(ids), self._rows_at_once):
                self._bring(number, table, ids[at : at + self._rows_at_once], places[at : at + self._rows_at_once])

    @property
    def _rows_at_once(self) -> int:
        return max(1, _PIECE_BYTES // (4 * self._width))

    def _bring(self, number: int, table: HostTable, ids: Ids, places: Ids) -> None:
        rows, slots, *_ = table.unsettled.export_ids(ids)
        host = self._by.host_tensor((len(ids), self._width))
        host.numpy()[:, : self.dim] = rows
        host.numpy()[:, self.dim :] = slots
        self.values.index_copy_(0, torch.as_tensor(places, device=self._device), self._by.to_device([host])[0])
        self._owners[places], self._ids[places] = number, ids
        self._kept[number].ids.put(ids, places.astype(np.int32))

    def keep_gradients(self, places: Places, on_device: Tensor, gradients: Tensor) -> None:
        """Keeps d(loss)/d(row), (N, D) on the GPU, until `step` or `drop_gradients`. places, on_device: (N,) each."""
        if len(places):
            self._waiting.append((places, on_device, gradients))

    def drop_gradients(self) -> None:
        """Forgets the gradients kept so far."""
        self._waiting = []

    def squared_norm(self) -> float:
        """Returns the sum of squares of the gradients that the next step would use. It waits for the GPU."""
        return float(row_squares(self._summed()[1]).double().sum()) if self._waiting else 0.0

    def step(self, rule: str, options: Mapping[str, Any]) -> int:
        """Steps the rows that have gradients, after the table took its step. Returns how many they are."""
        if not self._waiting:
            return 0
        places, gradients = self._summed()
        before = self.values.index_select(0, places)
        after = stepped_rows(rule, before, gradients, options, int(self.tables[0].unsettled.steps))
        self.values.index_copy_(0, places, after)
        for each, _, _ in self._waiting:
            self._changed[each] = True
        self._waiting = []
        return len(places)

    def _summed(self) -> tuple[Tensor, Tensor]:
        """Returns places (N,), each once, and the sums of their gradients (N, D)."""
        if len(self._waiting) == 1:
            _, places, gradients = self._waiting[0]
            return places.long(), gradients
        every = torch.cat([places.long() for _, places, _ in self._waiting])
        places, at = torch.unique(every, return_inverse=True)
        sums = torch.zeros((len(places), self.dim), device=self._device)
        return places, sums.index_add_(0, at, torch.cat([gradients for *_, gradients in self._waiting]))

    def settle(self) -> None:
        """Writes back the rows that have changed."""
        changed = np.flatnonzero(self._changed)
        for at in range(0, len(changed), self._rows_at_once):
            places = changed[at : at + self._rows_at_once]
            wanted = self.values.index_select(0, torch.as_tensor(places, device=self._device))
            values = self._by.to_host([wanted])  # all of a row at once
            rows = values.wait()[0].numpy()
            for number, table in enumerate(self.tables):
                own = self._owners[places] == number
                if own.any():
                    parts = (np.ascontiguousarray(part[own]) for part in (rows[:, : self.dim], rows[:, self.dim :]))
                    table.unsettled.write(self._ids[places[own]], *parts)
        self._changed[changed] = False

    def forget(self, kept: HbmTable, ids: Ids | None) -> None:
        """Keeps these rows of a table no more; None: none of them. Their values are not written back."""
        own = np.flatnonzero(self._owners == self._kept.index(kept))
        gone = own if ids is None else own[np.isin(self._ids[own], ids)]
        kept.ids.erase(self._ids[gone])
        self._owners[gone] = -1
        self._changed[gone] = False


class HbmTable:
    """Says of a table which rows a GPU keeps."""

    def __init__(self, group: HbmGroup) -> None:
        self.group = group
        self.ids = KeptIds()

    def settle(self) -> None:
        """Writes back what has changed, of the tables of its group too."""
        self.group.settle()

    def forget(self, ids: Ids | None) -> None:
        """Keeps these rows no more, None: none, without writing them back."""
        if self.ids.size():
            self.group.forget(self, ids)
