"""The difference of a table between two snapshots, in one pass over both in memory of a bounded size. D dim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from storage.checkpoint import Shard
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.row_streams import Difference, RowStream, compare, positions
from storage.specs import TableSpec
from storage.tiers.planning.use_codes import uses_of_codes


@dataclass(frozen=True)
class RowChange:
    """A row that one of the snapshots has otherwise."""

    id: int
    #: changed, added or removed.
    kind: str
    #: Euclidean norm of the change; of an added or removed row, of the row.
    change: float
    #: Euclidean norm of the row before, or 0.
    norm: float
    #: How often the id was used, as published: rounded down.
    uses: int


@dataclass(frozen=True)
class TableDifference:
    """The difference of one table."""

    name: str
    #: What rows are stored as, and their dim, in each snapshot; "" where it has no such table.
    before: str
    after: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    #: Root mean square of the norms of changes, and the largest of them, over changed rows.
    change_rms: float = 0.0
    change_max: float = 0.0
    #: The share of the uses of all rows of the second snapshot that go to changed or added rows.
    uses_share: float = 0.0
    #: Rows that changed most, and those that are used most among all that differ.
    largest: list[RowChange] = field(default_factory=list)
    hottest: list[RowChange] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """True if the table is the same in both."""
        return self.before == self.after and not (self.added or self.removed or self.changed)


#: Norms of the changes of ids that requests hold: (n,) ids ascending and (n,) norms.
AskedChanges = tuple[np.ndarray, np.ndarray]


def table_difference(
    name: str, before: AsOf, after: AsOf, asked: np.ndarray, top: int, on_rows: Callable[[int], None] = lambda _: None
) -> tuple[TableDifference, AskedChanges]:
    """Compares a table of two snapshots, either of which may lack it. See `compared_tables`."""
    return compared_tables(name, _stream(before, name), _stream(after, name), asked, top, on_rows)


def compared_tables(
    name: str,
    first: RowStream | None,
    second: RowStream | None,
    asked: np.ndarray,
    top: int,
    on_rows: Callable[[int], None] = lambda _: None,
) -> tuple[TableDifference, AskedChanges]:
    """Compares two streams of the rows of a table, one of which may be None.

    asked: ids (n,) int64 ascending whose changes are returned too. top: rows to list. on_rows: called with how many
    more rows were compared. Tables of another row type are compared by their values; of another dim, by their ids.
    """
    sums = _Sums(asked, top)
    if second is not None:
        second = RowStream(second.spec, partial(sums.counting, second))
    texts = [_text(stream) for stream in (first, second)]
    if first is None or second is None:
        only = first or second
        assert only is not None
        for block in only:
            sums.alone(block, "removed" if second is None else "added")
            on_rows(len(block.ids))
    else:
        reshaped = first.spec.dim != second.spec.dim
        for part in compare(*_alike(first, second)):
            sums.part(part, reshaped=reshaped)
            on_rows(part.same + len(part.changed.ids) + len(part.added.ids) + len(part.removed.ids))
    return sums.result(name, texts[0], texts[1]), sums.asked_changes()


def _stream(as_of: AsOf, name: str) -> RowStream | None:
    known = any(spec.name == name for spec in as_of.version.tables)
    return as_of.rows(name) if known else None


def _text(stream: RowStream | None) -> str:
    return "" if stream is None else f"{stream.spec.dim} x {stream.spec.row_type}"


def _alike(first: RowStream, second: RowStream) -> tuple[RowStream, RowStream]:
    """Returns streams whose rows can be compared: as they are, or decoded; of other dims without their values."""
    if first.codec == second.codec:
        return first, second
    dim = first.spec.dim if first.spec.dim == second.spec.dim else 1
    return _decoded(first, dim), _decoded(second, dim)


def _decoded(stream: RowStream, dim: int) -> RowStream:
    spec: TableSpec = replace(stream.spec, dim=dim, row_type="fp32")

    def read() -> Iterator[Shard]:
        for block in stream:
            rows = block.rows if dim == stream.spec.dim else np.zeros((len(block.ids), 1), np.float32)
            yield Shard(block.ids, rows, block.freq)

    return RowStream(spec, read)


class _Sums:
    """Adds up the differences of one table."""

    def __init__(self, asked: np.ndarray, top: int) -> None:
        self._uses = uses_of_codes()
        self._asked, self._asked_norms = asked, np.zeros(len(asked))
        self._top = top
        self._counts = {"added": 0, "removed": 0, "changed": 0, "same": 0}
        self._squares = self._largest_norm = self._differing_uses = self._all_uses = 0.0
        self._largest: list[RowChange] = []
        self._hottest: list[RowChange] = []

    def counting(self, stream: RowStream) -> Iterator[Shard]:
        """Yields the rows of the second snapshot, and adds up their uses."""
        for block in stream:
            self._all_uses += float(self._uses[block.freq].sum())
            yield block

    def part(self, part: Difference, *, reshaped: bool) -> None:
        """Takes the difference in one range of ids."""
        self._counts["same"] += part.same
        changed, before = part.changed, part.before
        if reshaped:
            # Every row has another shape; how far it moved is not defined.
            self._counts["changed"] += part.same
            self._counts["same"] -= part.same
        if len(changed.ids):
            old = before.rows.astype(np.float64)
            self._add("changed", changed, _norms(changed.rows - old), _norms(old))
        self.alone(part.added, "added")
        self.alone(part.removed, "removed")

    def alone(self, rows: Shard, kind: str) -> None:
        """Takes rows that one snapshot has alone."""
        if len(rows.ids):
            norms = _norms(rows.rows)
            self._add(kind, rows, norms, norms if kind == "removed" else np.zeros(len(norms)))

    def _add(self, kind: str, rows: Shard, change: np.ndarray, norm: np.ndarray) -> None:
        self._counts[kind] += len(rows.ids)
        if kind == "changed":
            self._squares += float((change**2).sum())
            self._largest_norm = max(self._largest_norm, float(change.max()))
        uses = self._uses[rows.freq]
        if kind != "removed":
            self._differing_uses += float(uses.sum())
        where = positions(self._asked, rows.ids)
        self._asked_norms[where[where >= 0]] = change[where >= 0]

        def listed(order: np.ndarray) -> list[RowChange]:
            return [
                RowChange(int(rows.ids[at]), kind, float(change[at]), float(norm[at]), int(uses[at]))
                for at in order[: self._top].tolist()
            ]

        self._largest = _first(self._largest + listed(np.lexsort((rows.ids, -change))), self._top, _by_change)
        self._hottest = _first(self._hottest + listed(np.lexsort((-change, -uses))), self._top, _by_uses)

    def result(self, name: str, before: str, after: str) -> TableDifference:
        """Returns the figures."""
        changed = self._counts["changed"]
        return TableDifference(
            name,
            before,
            after,
            **self._counts,
            change_rms=math.sqrt(self._squares / changed) if changed else 0.0,
            change_max=self._largest_norm,
            uses_share=self._differing_uses / self._all_uses if self._all_uses else 0.0,
            largest=self._largest,
            hottest=self._hottest,
        )

    def asked_changes(self) -> AskedChanges:
        """Returns the asked ids that differ, and how far."""
        moved = self._asked_norms > 0
        return self._asked[moved], self._asked_norms[moved]


def _norms(rows: np.ndarray) -> np.ndarray:
    norms: np.ndarray = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))
    return norms


def _by_change(row: RowChange) -> tuple[float, int]:
    return -row.change, row.id


def _by_uses(row: RowChange) -> tuple[int, float]:
    return -row.uses, -row.change


def _first(rows: list[RowChange], top: int, order: Callable[[RowChange], tuple[float, float]]) -> list[RowChange]:
    return sorted(rows, key=order)[:top]
