"""Rows of tables of one dim that a GPU keeps in its own memory and trains there. N ids, D dim, S optimizer values.

The table on the host has every row, and counts, admits and evicts them. Of a kept row its values there are old until
they are written back, which whoever reads the table causes (`EmbeddingTable.native`). Gradients go where their row is
when they come: one that has left the GPU since its lookup is stepped on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage._table import KeptIds, RowGradients, TableGradients, TrainingTable
from trainer.devices import Transfers
from trainer.embedding.row_steps import row_squares, stepped_rows

Ids = NDArray[np.int64]
Places = NDArray[np.int32]
_PIECE_BYTES = 64 << 20


class HostTable(Protocol):
    """A table of which a GPU keeps rows: `EmbeddingTable`, which has the meaning of each name."""

    dim: int
    may_leave_host: bool

    @property
    def slots(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def stamp(self) -> int: ...
    @property
    def has_gradients(self) -> bool: ...
    @property
    def unsettled(self) -> TrainingTable: ...
    def size(self) -> int: ...
    def keep_on(self, hbm: HbmTable | None) -> None: ...
    def add_gradients(self, ids: Ids, gradients: NDArray[np.float32]) -> None: ...
    def keep_gradients(self, gradients: TableGradients | RowGradients) -> None: ...


@dataclass(frozen=True)
class Held:
    """Says what places on the GPU had at some time: the number of the table and the id; and the stamps of tables."""

    owners: NDArray[np.int32]
    ids: Ids
    stamps: tuple[int, ...]


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
        self._is_settled = True
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

    def bytes_of(self, wanted: Sequence[Ids]) -> int:
        """Returns the bytes of a matrix for these ids."""
        return 4 * self._width * sum(map(len, wanted))

    def bytes_with(self, wanted: Sequence[Ids]) -> int:
        """Returns the bytes of the matrix after `keep`."""
        return max(self.memory_bytes, self.bytes_of(wanted))

    def clear(self) -> None:
        """Keeps nothing, and gives the memory of the matrix back. All values on the host are up to date."""
        self._leave(np.flatnonzero(self._owners >= 0))
        self._resize(0)

    def keep(self, wanted: Sequence[Ids]) -> None:
        """Keeps these ids of each table, and no others. All values on the host are up to date."""
        count = sum(map(len, wanted))
        if count > len(self._ids):
            self.clear()  # so that the memory of two matrices is never needed
            self._resize(count)
        coming: list[Ids] = []
        for number, ids in enumerate(wanted):
            own = np.flatnonzero(self._owners == number)
            stays = np.isin(self._ids[own], ids, assume_unique=True)
            self._leave(own[~stays])
            coming.append(np.setdiff1d(ids, self._ids[own[stays]], assume_unique=True))
        free = np.flatnonzero(self._owners < 0)
        if any(map(len, coming)):
            self._owners, self._ids = self._owners.copy(), self._ids.copy()  # as in `_leave`
        for number, (table, ids) in enumerate(zip(self.tables, coming, strict=True)):
            places, free = free[: len(ids)], free[len(ids) :]
            for at in range(0, len(ids), self._rows_at_once):
                self._bring(number, table, ids[at : at + self._rows_at_once], places[at : at + self._rows_at_once])

    def _resize(self, count: int) -> None:
        # The old matrix goes first. Without memory for the new one, nothing is kept.
        self.values = self.values.new_empty((0, self._width))
        self._owners, self._ids, self._changed = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, bool)
        if count:
            self.values = torch.empty((count, self._width), device=self._device)
            self._owners, self._ids = np.full(count, -1, np.int32), np.zeros(count, np.int64)
            self._changed = np.zeros(count, bool)

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

    def held(self) -> Held:
        """Returns what places have now, for the gradients of a lookup."""
        return Held(self._owners, self._ids, tuple(table.stamp for table in self.tables))

    def keep_gradients(
        self, places: Places, on_device: Tensor, gradients: Tensor, held: Held, *, counted: bool
    ) -> None:
        """Keeps d(loss)/d(row), (N, D) on the GPU, until `step` or `drop_gradients`.

        places, on_device: (N,) each. held: what places had when rows were looked up. counted: whether they were in
        training. Gradients of rows that have left since go to the host, and of rows whose change is not noted yet.
        """
        if not len(places):
            return
        now = self.held()
        if counted and now.owners is held.owners and now.stamps == held.stamps:
            self._waiting.append((places, on_device, gradients))
            return
        for table, ids, rows in self._on_host(places, gradients, held):
            table.add_gradients(ids, rows)

    def _on_host(
        self, places: Places, gradients: Tensor, held: Held
    ) -> list[tuple[HostTable, Ids, NDArray[np.float32]]]:
        """Returns ids and gradients (N, D) in host memory of each table that has any."""
        rows = self._by.to_host([gradients])
        arrived, owners, found = rows.wait()[0].numpy(), held.owners[places], []
        for number, table in enumerate(self.tables):
            own = owners == number
            if own.any():
                found.append((table, held.ids[places[own]], np.ascontiguousarray(arrived[own])))
        return found

    @property
    def has_gradients(self) -> bool:
        """True if gradients wait for the optimizer's step."""
        return bool(self._waiting)

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
        self._is_settled, self._waiting = False, []
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
        if self._is_settled:
            return
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
        self._is_settled = True

    def forget(self, kept: HbmTable, ids: Ids | None) -> None:
        """Keeps these rows of a table no more; None: none of them. Their values are not written back."""
        if ids is not None:
            # Most ids that are evicted are not kept, and to look for them takes long.
            before = kept.ids.size()
            kept.ids.erase(ids)
            if kept.ids.size() == before:
                return
        own = np.flatnonzero(self._owners == self._kept.index(kept))
        self._leave(own if ids is None else own[np.isin(self._ids[own], ids)])

    def _leave(self, gone: NDArray[np.intp]) -> None:
        """Keeps the rows at these places no more. Their gradients that wait for the step go to the host."""
        if not len(gone):
            return
        held, is_gone = self.held(), np.zeros(len(self._owners), bool)
        is_gone[gone] = True
        # Copied, because lookups whose gradients have not come yet have what was held.
        self._owners = self._owners.copy()
        self._owners[gone] = -1
        self._changed[gone] = False
        for number, kept in enumerate(self._kept):
            kept.ids.erase(held.ids[gone[held.owners[gone] == number]])
        waiting, self._waiting = self._waiting, []
        for places, on_device, gradients in waiting:
            leaves = is_gone[places]
            for part in (leaves, ~leaves):
                if not part.any():
                    continue
                at = torch.as_tensor(np.flatnonzero(part), device=self._device)
                of_part = gradients.index_select(0, at)
                if part is not leaves:
                    self._waiting.append((places[part], on_device.index_select(0, at), of_part))
                    continue
                for table, ids, rows in self._on_host(places[part], of_part, held):
                    table.keep_gradients(RowGradients(table.unsettled, ids, rows))


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
