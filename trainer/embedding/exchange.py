"""Rows of tables that are divided among the ranks of a training: brought for a batch, and their gradients taken back.

Each id belongs to one rank, by a hash, which has its row, its optimizer values and its counts, and admits and steps it
as one process does. A step sends the ids of a batch, each once, then the rows, then the sums of their gradients. T
tables, N ids, U different ids, D dim, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer.embedding.owners import owners
from trainer.ranks import Ranks

if TYPE_CHECKING:
    from trainer.embedding.table import EmbeddingTable

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Counts = NDArray[np.uint32]


@dataclass(frozen=True)
class Route:
    """The ids of a batch that were asked of each rank, and those that each rank asked of this one."""

    #: Places (n,) in the ids of a table, by rank and table.
    asked: list[list[NDArray[np.int64]]]
    #: The ids (n,) of each table that ranks asked for, one rank after the other.
    given: list[Ids]
    #: How many of them each rank asked for, (R, T).
    given_counts: NDArray[np.int64]


class RowExchange:
    """Brings the rows of `tables`, of which each rank has a part."""

    def __init__(self, ranks: Ranks, tables: Sequence[EmbeddingTable], *, flags: bool) -> None:
        """flags: whether it is asked which ids have a row."""
        self._ranks = ranks
        self._tables = list(tables)
        self._flags = flags

    def bring(
        self, wanted: Sequence[tuple[Ids, Counts]], *, train: bool
    ) -> tuple[list[Rows], list[NDArray[np.uint8]], Route]:
        """Returns the rows (U, D) of each table, whether each id has one (U,), and the way back for their gradients.

        wanted: the ids (U,) of each table, each once, and how often each came. train: counts them, and creates the rows
        that are due.
        """
        asked, parts, counts = self._sorted(wanted)
        ranks, tables = self._ranks, len(self._tables)
        told = ranks.exchange([[row] for row in counts], [8 * tables] * ranks.size, "ids")
        given_counts = np.stack([each.view(np.int64) for each in told])
        numbers = given_counts.sum(axis=1)
        messages = ranks.exchange(parts, [int(8 * n + 4 * (n + n % 2)) for n in numbers], "ids")
        id_parts = [message[: 8 * n].view(np.int64) for message, n in zip(messages, numbers, strict=True)]
        count_parts = [message[8 * n :].view(np.uint32)[:n] for message, n in zip(messages, numbers, strict=True)]
        ids, occurrences = _by_table(id_parts, given_counts), _by_table(count_parts, given_counts)
        found, flags = [], []
        for table, own, often in zip(self._tables, ids, occurrences, strict=True):
            rows = np.empty((len(own), table.dim), np.float32)
            flags.append(table.native.lookup_counted(own, often, rows, train))
            found.append(rows)
        route = Route(asked, ids, given_counts)
        rows_back = self._back(route, found, "rows", [table.dim for table in self._tables])
        if self._flags:
            flags = self._back(route, flags, "rows", [1] * tables)
        else:
            flags = [np.ones(len(each), np.uint8) for each, _ in wanted]
        return rows_back, flags, route

    def give(self, route: Route, sums: Sequence[Rows]) -> None:
        """Gives the ranks the gradients (U, D) of the rows of each table that `bring` brought; tables keep them."""
        ranks = self._ranks
        parts = [[_taken(sums[t], places) for t, places in enumerate(of)] for of in route.asked]
        dims = [table.dim for table in self._tables]
        sizes = [int(4 * (numbers * dims).sum()) for numbers in route.given_counts]
        came = [message.view(np.float32) for message in ranks.exchange(parts, sizes, "gradients")]
        for t, gradients in enumerate(_by_table(came, route.given_counts, dims)):
            if len(gradients):
                self._tables[t].add_gradients(route.given[t], gradients.reshape(-1, dims[t]))

    def _sorted(
        self, wanted: Sequence[tuple[Ids, Counts]]
    ) -> tuple[list[list[NDArray[np.int64]]], list[list[NDArray[Any]]], NDArray[np.int64]]:
        """Returns the places of ids by rank and table, the messages to each rank, and how many ids go to it, (R, T)."""
        ranks, tables = self._ranks.size, len(self._tables)
        all_ids = np.concatenate([ids for ids, _ in wanted])
        often = np.concatenate([counts for _, counts in wanted])
        lengths = [len(ids) for ids, _ in wanted]
        key = owners(all_ids, ranks) * tables + np.repeat(np.arange(tables), lengths)
        counts = np.bincount(key, minlength=ranks * tables).astype(np.int64)
        # Keys of 16 bits are sorted by counting.
        order = np.argsort(key.astype(np.uint16) if ranks * tables < 1 << 16 else key, kind="stable")
        all_ids, often = all_ids[order], often[order]
        order -= np.repeat(np.tile(np.cumsum([0, *lengths[:-1]]), ranks), counts)
        ends = np.cumsum([0, *counts])
        asked = [[order[ends[r * tables + t] : ends[r * tables + t + 1]] for t in range(tables)] for r in range(ranks)]
        parts: list[list[NDArray[Any]]] = []
        for rank in range(ranks):
            first, last = ends[rank * tables], ends[(rank + 1) * tables]
            # One count more where they are odd, so that all lies at multiples of 8 bytes.
            parts.append([all_ids[first:last], often[first:last], np.zeros((last - first) % 2, np.uint32)])
        return asked, parts, counts.reshape(ranks, tables)

    def _back(self, route: Route, values: Sequence[NDArray[Any]], kind: str, widths: Sequence[int]) -> list[Any]:
        """Sends values of rows (N, W) to the ranks that asked for them; returns those that were asked for (U, W)."""
        ranks = self._ranks
        dtype = values[0].dtype
        ends = np.cumsum(np.vstack([np.zeros_like(route.given_counts[:1]), route.given_counts]), axis=0)
        parts = [[each[ends[r, t] : ends[r + 1, t]] for t, each in enumerate(values)] for r in range(ranks.size)]
        sizes = [dtype.itemsize * sum(len(p) * w for p, w in zip(of, widths, strict=True)) for of in route.asked]
        messages = ranks.exchange(parts, sizes, kind)
        made = [
            np.empty((sum(len(of[t]) for of in route.asked), *each.shape[1:]), dtype) for t, each in enumerate(values)
        ]
        for message, of in zip(messages, route.asked, strict=True):
            at, flat = 0, message.view(dtype)
            for out, places, width in zip(made, of, widths, strict=True):
                out[places] = flat[at : at + len(places) * width].reshape(len(places), *out.shape[1:])
                at += len(places) * width
        return made


def _taken(rows: Rows, places: NDArray[np.int64]) -> Rows:
    taken: Rows = rows[places]
    return taken


def _by_table(
    messages: Sequence[NDArray[Any]], counts: NDArray[np.int64], widths: Sequence[int] | None = None
) -> list[NDArray[Any]]:
    """Returns what came from all ranks for each table, one rank after the other. widths: values an id."""
    tables = counts.shape[1]
    each = counts if widths is None else counts * np.asarray(widths)
    ends = np.cumsum(np.hstack([np.zeros((len(counts), 1), np.int64), each]), axis=1)
    return [
        np.concatenate([message[ends[r, t] : ends[r, t + 1]] for r, message in enumerate(messages)])
        for t in range(tables)
    ]
