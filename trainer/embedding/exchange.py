"""Rows of tables that are divided among the ranks of a training: brought for a batch, and their gradients taken back.

Each id belongs to one rank, by a hash, which has its row, its optimizer values and its counts, and admits and steps it
as one process does. A step sends the ids of a batch, each once, then the rows, then the sums of their gradients. T
tables, R ranks. The messages are described in storage/native/training/asked_rows.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from storage._table import AskedRows
from trainer.embedding.expected import expect_gradients
from trainer.embedding.table import EmbeddingTable
from trainer.ranks import Ranks

Values = NDArray[np.float32]
Flags = NDArray[np.uint8]
Sizes = NDArray[np.int64]


@dataclass(frozen=True)
class Route:
    """The rows that the ranks asked of each other for a batch."""

    #: Those that were asked of this rank.
    given: AskedRows
    #: Values that each rank asked of this one, (R,).
    given_sizes: Sizes
    #: Values that this rank asked of each, (R,).
    asked_sizes: Sizes


class RowExchange:
    """Brings the rows of `tables`, of which each rank has a part."""

    def __init__(self, ranks: Ranks, tables: Sequence[EmbeddingTable], *, flags: bool) -> None:
        """flags: whether it is asked which ids have a row."""
        self._ranks = ranks
        self._tables = list(tables)
        self._native = [table.unsettled for table in tables]
        self._dims = np.array([table.dim for table in tables], np.int64)
        self._flags = flags

    @property
    def ranks(self) -> int:
        """The number R of ranks."""
        return self._ranks.size

    def bring(
        self, numbers: Sizes, messages: NDArray[np.uint8], sizes: Sizes, *, train: bool
    ) -> tuple[Values, Flags | None, Route]:
        """Returns the values of the rows that are asked for, whether each id has a row, and the way back for gradients.

        numbers, messages, sizes: what BatchLookup.ask returns. train: counts the ids, and creates the rows that are
        due. Without flags all ids have a row.
        """
        ranks, threads = self._ranks, torch.get_num_threads()
        asked = numbers.reshape(ranks.size, -1)
        heads = np.column_stack((asked, sizes))
        width = np.full(ranks.size, heads.shape[1])
        came = ranks.exchange(heads.reshape(-1), width, width, "ids").reshape(heads.shape)
        given, given_bytes = np.ascontiguousarray(came[:, :-1]), np.ascontiguousarray(came[:, -1])
        owned = AskedRows(self._native)
        owned.find(ranks.exchange(messages, sizes, given_bytes, "ids"), given_bytes, given.reshape(-1), train, threads)
        values = np.empty(owned.values, np.float32)
        owned.write(values, threads)
        route = Route(owned, given @ self._dims, asked @ self._dims)
        rows = ranks.exchange(values, route.given_sizes, route.asked_sizes, "rows")
        flags = None
        if self._flags:
            flags = ranks.exchange(owned.flags(), given.sum(axis=1), asked.sum(axis=1), "rows")
        return rows, flags, route

    def give(self, route: Route, sums: Values) -> None:
        """Sends the ranks the gradients of the rows that `bring` brought, in their order.

        Tables get theirs when they are asked for them, and until then the caller goes on.
        """
        arriving = self._ranks.start_exchange(sums, route.asked_sizes, route.given_sizes, "gradients")

        def keep() -> None:
            route.given.set_gradients(arriving.wait(), torch.get_num_threads())
            for place, table in enumerate(self._tables):
                table.keep_gradients(route.given.gradients(place))

        expect_gradients(self._tables, keep)
