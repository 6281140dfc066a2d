"""Computes a full version as its difference to what is served, so that both need not be in memory at once.

The files of the version that the store was filled with and those of the new one are read side by side, both in the
order of ids, a shard of each at a time. Ids that deltas changed since are not compared: their rows are taken as new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storage.checkpoint import PublishedVersion, Shard
from storage.errors import CheckpointError
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
        for before, after in _side_by_side(old.shards(spec.name), new.shards(spec.name)):
            where = _positions(before.ids, after.ids)
            known = where >= 0
            same = np.zeros(len(after.ids), np.bool_)
            # Bytes are compared, not values: -0.0 is another row than 0.0.
            same[known] = (after.encoded[known] == before.encoded[where[known]]).all(axis=1)
            same &= ~np.isin(after.ids, ids_touched, assume_unique=True)
            fresh = ~same
            if fresh.any():
                parts.append(after.take(fresh))
                count += len(parts[-1].ids)
            missing.append(before.ids[_positions(after.ids, before.ids) < 0])
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


def _positions(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the position of each of `wanted` in `ids`, both ascending; -1 where it is missing."""
    where = np.searchsorted(ids, wanted)
    where[where == len(ids)] = 0
    found = ids[where] == wanted if len(ids) else np.zeros(len(wanted), np.bool_)
    return np.where(found, where, -1)


def _side_by_side(old: Iterator[Shard], new: Iterator[Shard]) -> Iterator[tuple[Shard, Shard]]:
    """Yields pairs of parts that span the same ids; one of a pair may be empty."""
    before, after = next(old, None), next(new, None)
    if before is None or after is None:
        raise CheckpointError("a table of a version has no shard")
    while True:
        if not len(before.ids) and (following := next(old, None)) is not None:
            before = following
            continue
        if not len(after.ids) and (following := next(new, None)) is not None:
            after = following
            continue
        if not len(before.ids) or not len(after.ids):
            break
        last = min(before.ids[-1], after.ids[-1])
        cut_before = int(np.searchsorted(before.ids, last, side="right"))
        cut_after = int(np.searchsorted(after.ids, last, side="right"))
        yield before.take(slice(cut_before)), after.take(slice(cut_after))
        before, after = before.take(slice(cut_before, None)), after.take(slice(cut_after, None))
    while len(before.ids) or len(after.ids):
        yield before, after
        before = next(old, None) or before.take(slice(0))
        after = next(new, None) or after.take(slice(0))
