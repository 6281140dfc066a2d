"""Computes a full version as its difference to what is served, so that both need not be in memory at once.

The files of the version that the store was filled with and those of the new one are read side by side, both in the
order of ids, a shard of each at a time. Ids that deltas changed since are not compared: their rows are taken as new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from storage.checkpoint import PublishedVersion, Shard
from storage.checkpoint.row_streams import RowStream, compare
from storage.specs import TableSpec


class TooDifferent(Exception):  # noqa: N818 - no error: the version gets a store of its own
    """More rows differ than are worth being staged."""


@dataclass(frozen=True)
class VersionDiff:
    """The difference that turns the served rows into those of a version; a DeltaSource."""

    path: Path
    snapshot: str
    #: Tables with the numbers of their changed rows.
    tables: tuple[TableSpec, ...]
    changed: Mapping[str, tuple[Shard, ...]]
    gone: Mapping[str, np.ndarray]

    def shards(self, table: str) -> Iterator[Shard]:
        """Returns the new and changed rows of a table, ids ascending."""
        return iter(self.changed[table])

    def removed(self, table: str) -> np.ndarray:
        """Returns the ids (m,) int64, ascending, that the version does not have."""
        return self.gone[table]

    @property
    def rows(self) -> int:
        """Number of changed rows in all tables."""
        return sum(spec.rows for spec in self.tables)


def version_diff(
    old: PublishedVersion, new: PublishedVersion, touched: Mapping[str, np.ndarray], share: float
) -> VersionDiff:
    """Returns the difference of two versions with the same tables.

    touched: by table, ids (n,) int64 ascending that changed since `old`. Raises TooDifferent when more than `share` (0
    to 1) of the new rows differ, and what reading the versions raises.
    """
    most = share * sum(spec.rows for spec in new.tables)
    changed: dict[str, tuple[Shard, ...]] = {}
    gone: dict[str, np.ndarray] = {}
    tables: list[TableSpec] = []
    count = 0
    for spec in new.tables:
        parts: list[Shard] = []
        missing: list[np.ndarray] = []
        ids_touched = touched.get(spec.name, np.empty(0, np.int64))
        rows_before, rows_after = (RowStream(spec, partial(version.shards, spec.name)) for version in (old, new))
        for found in compare(rows_before, rows_after, ids_touched):
            fresh = found.fresh
            if len(fresh.ids):
                parts.append(fresh)
                count += len(fresh.ids)
            missing.append(found.removed.ids)
            if count > most:
                raise TooDifferent(f"over {share:.0%} of the rows differ")
        present = np.concatenate([ids_touched[:0], *(part.ids for part in parts)])
        # What a delta added and the version does not have is gone too; a touched id that it has is among the changed.
        added = ids_touched[~np.isin(ids_touched, present)]
        gone[spec.name] = np.unique(np.concatenate([added, *missing]))
        changed[spec.name] = tuple(parts)
        tables.append(replace(spec, rows=len(present)))
    return VersionDiff(new.path, new.snapshot, tuple(tables), changed, gone)


def touched_ids(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the ids of several arrays, ascending, each once."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
