"""Streams of a table's rows in ascending order of ids, block by block, and the merges over them.

No stream holds its table: a published snapshot is read shard by shard, newest rows first, and two streams are compared
over the same ranges of ids. What is in memory is one block of each. Rows are compared as they are stored, so rounded
row types compare their encoded bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from storage.checkpoint.delta_reader import PublishedDelta
from storage.checkpoint.reader import PublishedVersion
from storage.checkpoint.tables import Shard, ascending
from storage.errors import CheckpointError
from storage.rows import RowCodec
from storage.specs import TableSpec

# Bytes of rows that are compared at once: two such pieces fit into a processor's cache.
_COMPARED_BYTES = 1 << 20
NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True)
class RowStream:
    """The rows of one table; each iteration reads them anew, from the smallest id on.

    read: returns the blocks in ascending order of ids, each strictly ascending, encoded as `spec` says. Iterating
    raises CheckpointError for blocks in another order or of another row type.
    """

    #: The table; `rows` is 0 where the number is not known before it is read.
    spec: TableSpec
    read: Callable[[], Iterable[Shard]] = field(repr=False)

    @property
    def codec(self) -> RowCodec:
        """The codec of its rows."""
        return RowCodec(self.spec.row_type, self.spec.dim)

    @property
    def empty(self) -> Shard:
        """A block of no rows."""
        return Shard(NO_IDS, np.empty((0, self.codec.row_bytes), np.uint8), np.empty(0, np.uint8), self.codec)

    def __iter__(self) -> Iterator[Shard]:
        """Yields the blocks; those without a row are left out."""
        last: int | None = None
        for block in self.read():
            if not len(block.ids):
                continue
            if block.codec != self.codec:
                raise CheckpointError(f"table {self.spec.name!r}: rows of {block.codec}, expected {self.codec}")
            if (last is not None and int(block.ids[0]) <= last) or not ascending(block.ids):
                raise CheckpointError(f"table {self.spec.name!r}: ids are not strictly ascending; sort them")
            last = int(block.ids[-1])
            yield block


@dataclass(frozen=True)
class Difference:
    """Holds the difference of two streams in one range of ids; ranges come in ascending order."""

    #: Rows of the second stream whose ids both have, with other bytes; and those of the first, by the same ids.
    changed: Shard
    before: Shard
    #: Rows that the second stream has alone.
    added: Shard
    #: Rows that the first stream has alone.
    removed: Shard
    #: Number of rows that are the same in both.
    same: int

    @property
    def fresh(self) -> Shard:
        """The rows of the second stream that the first does not have so, in ascending order of ids."""
        return _applied(self.changed, self.added, NO_IDS)


@dataclass(frozen=True)
class RowPatch:
    """Describes the changes that a delta makes to a table."""

    #: New and changed rows.
    rows: RowStream
    #: (m,) int64 ascending, none of the rows'.
    removed: np.ndarray


def array_rows(spec: TableSpec, ids: np.ndarray, rows: np.ndarray, freq: np.ndarray | None = None) -> RowStream:
    """Returns the rows of arrays, encoded piece by piece as they are read.

    ids: (n,) int64 strictly ascending. rows: (n, dim) float32. freq: (n,) uint8, or None for zeros.
    """
    codec = RowCodec(spec.row_type, spec.dim)

    def read() -> Iterator[Shard]:
        for piece in codec.pieces(len(ids)):
            uses = np.zeros(len(ids[piece]), np.uint8) if freq is None else freq[piece]
            yield Shard(ids[piece], codec.encode(rows[piece]), uses, codec)

    return RowStream(spec, read)


def published_rows(version: PublishedVersion, deltas: Sequence[PublishedDelta], table: str) -> RowStream:
    """Returns the rows that a table has in the snapshot to which `deltas` lead from `version`, oldest first.

    One shard of the version, and one of each delta that changes the table, is in memory at a time. Every byte is
    checked as it is read. Raises NotFound for a table that the version does not have; reading raises what
    `PublishedVersion.shards` and `PublishedDelta.shards` do.
    """
    spec = version.table(table)
    rows = RowStream(spec, partial(version.shards, table))
    patches = []
    for delta in deltas:
        own = next((entry for entry in delta.manifest.tables if entry.name == table), None)
        if own is not None and (own.rows or own.removed):
            patches.append(RowPatch(RowStream(spec, partial(delta.shards, table)), delta.removed(table)))
    return patched_rows(rows, patches)


def patched_rows(rows: RowStream, patches: Sequence[RowPatch]) -> RowStream:
    """Returns rows with patches on top, the newest last, without holding more than a block of each."""
    if not patches:
        return rows
    return RowStream(replace(rows.spec, rows=0), lambda: _patched(rows, patches))


def compare(before: RowStream, after: RowStream, touched: np.ndarray = NO_IDS) -> Iterator[Difference]:
    """Yields what lies between two streams of one table, range by range, in ascending order of ids.

    Bytes are compared, not values: -0.0 is another row than 0.0. Use counts are not compared. touched: ids (n,) int64
    ascending whose rows count as changed where both streams have them. Raises CheckpointError when the streams have
    other dims or row types.
    """
    if before.codec != after.codec:
        raise CheckpointError(
            f"table {after.spec.name!r}: rows of {before.codec} and of {after.codec} cannot be compared"
        )
    for old, new in side_by_side([before, after]):
        if len(old.ids) == len(new.ids) and np.array_equal(old.ids, new.ids):
            other = _differ(old.encoded, new.encoded) | _among(new.ids, touched)
            none = slice(0)
            yield Difference(new.take(other), old.take(other), new.take(none), old.take(none), int((~other).sum()))
            continue
        where = positions(old.ids, new.ids)
        known = where >= 0
        other = np.zeros(len(new.ids), np.bool_)
        other[known] = _differ(old.encoded[where[known]], new.encoded[known]) | _among(new.ids[known], touched)
        gone = np.ones(len(old.ids), np.bool_)
        gone[where[known]] = False
        same = int(known.sum() - other.sum())
        yield Difference(new.take(other), old.take(where[other]), new.take(~known), old.take(gone), same)


def side_by_side(streams: Sequence[RowStream]) -> Iterator[tuple[Shard, ...]]:
    """Yields, range of ids by range of ids, the rows that each stream has there; a range has a row of some stream.

    The blocks are views of those of the streams.
    """
    sources = [iter(stream) for stream in streams]
    empty = [stream.empty for stream in streams]
    blocks = [next(source, None) for source in sources]
    while present := [block for block in blocks if block is not None]:
        last = min(int(block.ids[-1]) for block in present)
        parts: list[Shard] = []
        for number, block in enumerate(blocks):
            if block is None:
                parts.append(empty[number])
                continue
            cut = int(np.searchsorted(block.ids, last, side="right"))
            parts.append(block.take(slice(cut)))
            blocks[number] = block.take(slice(cut, None)) if cut < len(block.ids) else next(sources[number], None)
        yield tuple(parts)


def positions(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the position of each of `wanted` in `ids`, which is ascending; -1 where it is missing."""
    where = np.searchsorted(ids, wanted)
    where[where == len(ids)] = 0
    found = ids[where] == wanted if len(ids) else np.zeros(len(wanted), np.bool_)
    return np.where(found, where, -1)


def _patched(rows: RowStream, patches: Sequence[RowPatch]) -> Iterator[Shard]:
    taken = [0] * len(patches)
    for old, *changes in side_by_side([rows, *(patch.rows for patch in patches)]):
        last = max(int(part.ids[-1]) for part in (old, *changes) if len(part.ids))
        together, gone = rows.empty, NO_IDS
        for number, part in enumerate(changes):
            removed = patches[number].removed
            end = int(np.searchsorted(removed, last, side="right"))
            here, taken[number] = removed[taken[number] : end], end
            if len(part.ids) or len(here):
                together = _applied(together, part, here)
                gone = np.union1d(gone[positions(part.ids, gone) < 0], here)
        yield _applied(old, together, gone)


def _applied(old: Shard, new: Shard, removed: np.ndarray) -> Shard:
    """Returns rows with others on top, without those that are removed; `old` itself where nothing changes it."""
    if not len(old.ids) or not (len(new.ids) or len(removed)):
        return new if not len(old.ids) else old
    keep = np.ones(len(old.ids), np.bool_)
    for ids in (new.ids, removed):
        where = positions(old.ids, ids)
        keep[where[where >= 0]] = False
    if not len(new.ids):
        return old if keep.all() else old.take(keep)
    ids = np.concatenate([old.ids[keep], new.ids])
    # Both are sorted already, which a stable sort makes use of.
    order = np.argsort(ids, kind="stable")
    encoded = np.concatenate([old.encoded[keep], new.encoded])[order]
    return Shard(ids[order], encoded, np.concatenate([old.freq[keep], new.freq])[order], old.codec)


def _among(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns which of `ids` are among others, (n,) bool; both ascending."""
    return positions(others, ids) >= 0 if len(others) else np.zeros(len(ids), np.bool_)


def _differ(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns which rows differ in any byte, (n,) bool. rows, others: (n, row_bytes) uint8."""
    word = np.uint64 if rows.shape[1] % 8 == 0 else np.uint32
    wide, wide_others = (np.ascontiguousarray(each).view(word) for each in (rows, others))
    found = np.empty(len(rows), np.bool_)
    step = max(1, _COMPARED_BYTES // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        np.any(wide[part] != wide_others[part], axis=1, out=found[part])
    return found
