"""All rows of a table of which each rank has a part, for what one rank does alone, such as publishing.

The first rank works, and the others take part in what it asks of the tables until it is done. Rows go over as they are
and a bounded piece at a time. N ids, D dim, R ranks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.checkpoint.fingerprint import MASK
from storage.errors import CheckpointError, Unavailable
from storage.tiers.training.spool import Spool
from trainer.embedding.owners import owners
from trainer.embedding.table import Counts, EmbeddingTable, Ids, Rows
from trainer.ranks import Ranks

_Result = TypeVar("_Result")
# Rows that a rank sends at once.
_PIECE_BYTES = 32 << 20


def at_first(
    ranks: Ranks, tables: Iterable[EmbeddingTable], work: Callable[[], _Result], scratch: Path | None = None
) -> _Result:
    """Has the first rank do `work`, and returns its result at all ranks, which call this together.

    In it, layers and `whole` read the rows of all ranks. tables: all that it may read. scratch: a folder of the first
    rank, where many rows lie for that time. Raises what `work` raises, and Unavailable at the other ranks.
    """
    if not ranks.are_several or ranks.works_alone:
        return work()
    if not ranks.is_first:
        return _take_part(ranks, {table.name: table for table in tables})  # type: ignore[no-any-return]
    try:
        with _working_alone(ranks, scratch):
            result = work()
    except BaseException as error:
        with suppress(Unavailable):  # the others have ended, which may be why
            ranks.from_first(("failed", str(error)))
        raise
    ranks.from_first(("done", result))
    return result


def whole(table: EmbeddingTable) -> EmbeddingTable:
    """Returns a table with the rows of all ranks, for `at_first`; the table itself where there are no others."""
    return WholeTable(table) if table.ranks.works_alone else table


def owned(table: EmbeddingTable, ids: Ids) -> NDArray[np.bool_] | slice:
    """Returns which of the ids (N,) have their rows at this rank, as an index."""
    if not table.ranks.are_several:
        return slice(None)
    mine: NDArray[np.bool_] = owners(np.ascontiguousarray(ids), table.ranks.size) == table.ranks.rank
    return mine


@contextmanager
def _working_alone(ranks: Ranks, scratch: Path | None) -> Iterator[None]:
    ranks.works_alone, ranks.scratch = True, scratch
    try:
        yield
    finally:
        ranks.works_alone, ranks.scratch = False, None


def _take_part(ranks: Ranks, tables: Mapping[str, EmbeddingTable]) -> Any:
    """Does what the first rank asks, until it is done; returns its result."""
    while True:
        what, about, *arguments = ranks.from_first(_NOTHING)
        if what == "done":
            return about
        if what == "failed":
            raise Unavailable(f"the first rank of the training has failed: {about}")
        _PARTS[what](tables[about], *arguments)


class WholeTable(EmbeddingTable):
    """A table as the first rank reads it in `at_first`; what is not overridden here is about its own part."""

    def __init__(self, own: EmbeddingTable) -> None:
        self.__dict__.update(vars(own))
        self._own = own

    def size(self) -> int:
        return sum(self._all("size"))

    def lookup(self, ids: Ids, *, train: bool) -> Rows:
        assert not train
        return self.read(ids)[0]

    def read(self, ids: Ids) -> tuple[Rows, NDArray[np.uint8]]:
        return self._with_others(_read, np.ascontiguousarray(ids))

    def published_rows(self, since: int = 0) -> tuple[Ids, Rows, Counts]:
        return self._with_others(_export, since)

    def has_changes(self, since: int) -> bool:
        return any(self._all("has_changes", since))

    def removed_since(self, stamp: int) -> Ids:
        return np.sort(np.concatenate(self._all("removed_since", stamp)))

    def rows_fingerprint(self, row_type: str = "fp32", since: int = 0) -> int:
        return int(sum(self._all("rows_fingerprint", row_type, since))) & MASK

    def changes_fingerprint(self, row_type: str, since: int) -> int:
        return int(sum(self._all("changes_fingerprint", row_type, since))) & MASK

    def erase_expired(self, stamp: int) -> int:
        return sum(self._all("erase_expired", stamp))

    def advance(self) -> int:
        closed = set(self._all("advance"))
        if len(closed) > 1:
            raise CheckpointError(f"table {self.name!r}: the ranks differ in changes; resume from the last commit")
        return int(closed.pop())

    def set_stamp(self, stamp: int) -> None:
        self._all("set_stamp", stamp)

    def forget_removed(self, stamp: int) -> None:
        self._all("forget_removed", stamp)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Returns what a method of each rank's part returns, by rank."""
        return self._with_others(_call, method, *arguments)

    def _with_others(self, part: Callable[..., _Result], *arguments: Any) -> _Result:
        self.ranks.from_first((part.__name__, self.name, *arguments))
        return part(self._own, *arguments)


# What all ranks do together, each with its part of a table; the first one gets the result.


def _call(table: EmbeddingTable, method: str, *arguments: Any) -> list[Any]:
    return table.ranks.gather(getattr(table, method)(*arguments))


def _read(table: EmbeddingTable, ids: Ids) -> tuple[Rows, NDArray[np.uint8]]:
    """Returns the rows (N, D) of ids, and whether each has one (N,)."""
    ranks, width = table.ranks, 4 * table.dim + 1
    own = owners(ids, ranks.size)
    rows, flags = _own_rows(table, ids[own == ranks.rank])
    sizes = np.bincount(own, minlength=ranks.size) * width
    messages = _to_first(ranks, [rows, flags], sizes)
    found, has_row = np.empty((len(ids), table.dim), np.float32), np.empty(len(ids), np.uint8)
    for rank, message in enumerate(messages):
        places = np.flatnonzero(own == rank)
        end = 4 * table.dim * len(places)
        found[places] = message[:end].view(np.float32).reshape(-1, table.dim)
        has_row[places] = message[end:]
    return found, has_row


def _export(table: EmbeddingTable, since: int) -> tuple[Ids, Rows, Counts]:
    """Returns ids (N,) ascending, rows (N, D) and counts (N,) of what changed after a stamp: of all rows for 0.

    Ranks send their rows in the order of ids, each as many as come before the last id that all of them have sent.
    """
    ranks, width = table.ranks, 12 + 4 * table.dim
    ids = table.changed_since(since)
    piece = max(1, _PIECE_BYTES // width)
    folder = ranks.scratch or Path(tempfile.gettempdir())
    spools = [
        Spool(np.int64, folder=folder),
        Spool(np.float32, (table.dim,), folder=folder),
        Spool(np.uint32, folder=folder),
    ]
    at = 0
    while True:
        chunk = ids[at : at + piece]
        ends = ranks.gather(int(chunk[-1]) if at + piece < len(ids) else None)
        bound = min((end for end in ends if end is not None), default=None)
        mine = chunk if bound is None else chunk[: np.searchsorted(chunk, bound, side="right")]
        rows, _, counts, *_ = table.export_ids(mine)
        numbers = ranks.gather(len(mine))
        messages = _to_first(ranks, [mine, rows, counts], np.array(numbers) * width)
        if ranks.is_first:
            _merge(messages, numbers, table.dim, spools)
        at += len(mine)
        if bound is None:
            break
    all_ids, all_rows, all_counts = (spool.array() for spool in spools)
    return all_ids, all_rows, all_counts


_NOTHING: tuple[Any, ...] = ()
_PARTS: dict[str, Callable[..., Any]] = {part.__name__: part for part in (_call, _read, _export)}


def _own_rows(table: EmbeddingTable, ids: Ids) -> tuple[Rows, NDArray[np.uint8]]:
    rows = np.empty((len(ids), table.dim), np.float32)
    return rows, table.native.lookup_counted(ids, np.ones(len(ids), np.uint32), rows, False)


def _to_first(ranks: Ranks, arrays: list[NDArray[Any]], sizes: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """Sends arrays to the first rank, which gets those of all ranks; the others get nothing. sizes: bytes by rank."""
    message = np.concatenate([each.reshape(-1).view(np.uint8) for each in arrays])
    sending, coming = np.zeros(ranks.size, np.int64), np.zeros(ranks.size, np.int64)
    sending[0] = len(message)
    if ranks.is_first:
        coming[:] = sizes
    came = ranks.exchange(message, sending, coming, "published")
    return np.split(came, np.cumsum(coming)[:-1]) if ranks.is_first else []


def _merge(messages: list[NDArray[np.uint8]], numbers: list[int], dim: int, spools: Sequence[Spool]) -> None:
    """Adds the rows (N, D) of a piece, by their ids."""
    of_ids, of_rows, of_counts = spools
    ends = [np.cumsum([8 * number, 4 * dim * number]) for number in numbers]
    ids, rows, counts = zip(*(np.split(message, end) for message, end in zip(messages, ends, strict=True)), strict=True)
    came = np.concatenate([part.view(np.int64) for part in ids])
    order = np.argsort(came)
    of_ids.append(came[order])
    of_rows.append(np.concatenate(rows).view(np.float32).reshape(len(came), dim)[order])
    of_counts.append(np.concatenate(counts).view(np.uint32)[order])
