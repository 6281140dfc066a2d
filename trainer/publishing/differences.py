"""Finds what changed between a published snapshot and a module that kept no record of its changes.

Rows of both are read side by side in ascending order of ids, a block of each at a time. In memory are the ids and rows
that differ, which are at most a share of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from storage.checkpoint import DeltaTable, Shard
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.fingerprint import MASK, agreed_fingerprint, removed_fingerprint, rows_fingerprint
from storage.checkpoint.row_streams import NO_IDS, Difference, RowStream, compare
from trainer.publishing.delta_content import Changes
from trainer.publishing.embedding_layers import TableSource
from trainer.publishing.lookup_half import find_rows


class TooManyChanges(Exception):  # noqa: N818 - no error: a version takes the delta's place
    """Signals that so many rows differ that a version is the better choice."""


def difference(
    sources: Sequence[TableSource],
    before: AsOf,
    row_types: Mapping[str, str],
    *,
    share: float,
    on_block: Callable[[], None],
) -> Changes:
    """Returns the rows that turn a snapshot into what the module's tables hold, compared as they are stored.

    share: raises TooManyChanges when more of the rows differ; 0 for no bound. on_block: called after each block.
    Raises ParityError when the result would not be the module's whole table, and what reading the snapshot raises.
    """
    return _differences(sources, before, row_types, {}, share, on_block)


def difference_to_version(
    sources: Sequence[TableSource], before: AsOf, row_types: Mapping[str, str], *, on_block: Callable[[], None]
) -> Changes:
    """Returns the rows that turn the version of a snapshot, or what its deltas made of it, into the module's tables.

    Every row that a delta touched is among them, also where it is the version's again. See `difference`.
    """
    touched = {source.name: touched_ids(before, source.name) for source in sources}
    return _differences(sources, AsOf(before.version), row_types, touched, 0.0, on_block)


def touched_ids(snapshot: AsOf, table: str) -> np.ndarray:
    """Returns the ids that the deltas of a snapshot changed or removed: (n,) int64 ascending."""
    parts = [NO_IDS]
    for delta in snapshot.deltas:
        if any(entry.name == table for entry in delta.tables):
            parts += [*(shard.ids for shard in delta.shards(table)), delta.removed(table)]
    return np.unique(np.concatenate(parts))


def _differences(
    sources: Sequence[TableSource],
    before: AsOf,
    row_types: Mapping[str, str],
    touched: Mapping[str, np.ndarray],
    share: float,
    on_block: Callable[[], None],
) -> Changes:
    tables: list[DeltaTable] = []
    fingerprints: dict[str, int] = {}
    for source in sources:
        row_type, ids_touched = row_types[source.name], touched.get(source.name, NO_IDS)
        found = _Found(before.rows(source.name))
        for each in compare(found.published(), source.stream(row_type), ids_touched):
            found.take(each)
            if share and found.count > share * source.live.size():
                raise TooManyChanges(f"more than {share:.0%} of the rows of the table {source.name!r} differ")
            on_block()
        found.check(source, row_type)
        ids = np.concatenate(found.ids)
        # What is among the touched ids and not among those that are written has no row any more.
        gone = np.union1d(np.concatenate(found.gone), np.setdiff1d(ids_touched, ids, assume_unique=True))
        rows, freq = find_rows(source.live, ids)[0], np.concatenate(found.freq)
        tables.append(DeltaTable(source.name, source.dim, ids, rows, freq, gone, row_type, source.absent))
        fingerprints[source.name] = (found.written + removed_fingerprint(gone)) & MASK
    return Changes(tables, fingerprints)


class _Found:
    """Gathers the difference of one table, and the fingerprints of what it takes away and adds."""

    def __init__(self, rows: RowStream) -> None:
        self._rows = rows
        self.ids = [NO_IDS]
        self.freq = [np.empty(0, np.uint8)]
        self.gone = [NO_IDS]
        self.count = 0
        #: Fingerprint of the rows that are new or changed.
        self.written = 0
        self._before = self._replaced = 0

    def published(self) -> RowStream:
        """Returns the published rows, whose fingerprint is taken as they are read."""

        def read() -> Iterator[Shard]:
            for block in self._rows:
                self._before += rows_fingerprint(block.ids, block.encoded)
                yield block

        return RowStream(self._rows.spec, read)

    def take(self, found: Difference) -> None:
        """Adds the difference in one range of ids."""
        fresh = found.fresh
        self.ids.append(fresh.ids)
        self.freq.append(fresh.freq)
        self.gone.append(found.removed.ids)
        self.count += len(fresh.ids) + len(found.removed.ids)
        self.written += rows_fingerprint(fresh.ids, fresh.encoded)
        for replaced in (found.before, found.removed):
            self._replaced += rows_fingerprint(replaced.ids, replaced.encoded)

    def check(self, source: TableSource, row_type: str) -> None:
        """Raises ParityError unless the difference makes the module's whole table of the published one."""
        result = self._before - self._replaced + self.written
        agreed_fingerprint(f"table {source.name!r}", result & MASK, source.fingerprint(row_type))
