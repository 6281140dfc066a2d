"""Chooses the rows of tables that a GPU keeps in its own memory: those that training has seen most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer.devices import Transfers
from trainer.embedding.hbm_group import HbmGroup, HostTable, Ids

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
