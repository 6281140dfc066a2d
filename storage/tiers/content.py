"""Durable markers say what the SSD tier holds: the rows of a version, and the changes of merges to them.

    tables          name -> number on SSD, kept as long as the folder lives
    content.NAME    row size, row type and digest of the version's table that was loaded whole; none while it is loaded
    version         snapshot of the version whose tables were loaded
    at              snapshot that the rows are at now: the version's own, or that of the newest merged delta; none while
                    a load is under way
    caller.NAME     the texts of the store's owner

SSD also has, for each table, the ids that merges changed since the version was loaded. A version's digests describe
SSD only together with these: the rows are those of the version's files, except for the changed ids, whose rows are on
SSD alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from storage.errors import StoreError
from storage.specs import TableSpec
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.source import TableSource
from storage.tiers.ssd.keys import MAX_TABLES
from storage.tiers.ssd.tier import SsdTier

_TABLES, _VERSION, AT = "tables", "version", "at"
# Takes a table, its rows done and all its rows.
Progress = Callable[[str, int, int], None]


def caller_marker(name: str) -> str:
    """Returns the key of a marker of the store's owner."""
    return f"caller.{name}"


class Content:
    """Loads versions into an SSD tier and knows what it holds. Tables are given by name, in any order.

    One thread writes at a time.
    """

    def __init__(self, ssd: SsdTier, names: Sequence[str]) -> None:
        self._ssd = ssd
        self._names = tuple(names)
        self.numbers = self._numbered()
        self._openings = ssd.database.openings
        self.at = ssd.marker(AT) or ""

    def load(self, version: TableSource, progress: Progress | None = None, pace: Pace = UNHURRIED) -> None:
        """Writes a version to SSD, unless SSD holds it already, with or without deltas merged on top.

        A load that was interrupted continues with the table where it stopped when it is called again.
        """
        if self.holds(version):
            return
        if self.at == version.snapshot != self._ssd.marker(_VERSION):
            self.adopt(version)  # it came as a delta of the version before, and was merged
            return
        # From here to the end SSD is at no snapshot, and it stays so if this is interrupted.
        self._ssd.set_markers({_VERSION: None, AT: None})
        self.at = ""
        self._forget_other_tables()
        for spec in version.tables:
            if spec.name in self.numbers:
                self._load_table(version, spec, progress, pace)
        self._ssd.set_markers({_VERSION: version.snapshot, AT: version.snapshot})
        self.at = version.snapshot

    def adopt(self, version: TableSource) -> None:
        """Records that SSD holds this version, whose rows are those that it is at. Nothing is read."""
        markers: dict[str, str | None] = {
            f"content.{spec.name}": _content(version, spec) for spec in version.tables if spec.name in self.numbers
        }
        # If this ends between the two steps, more ids are listed as changed than are, which only costs time.
        self._ssd.set_markers({**markers, _VERSION: version.snapshot, AT: version.snapshot})
        self.at = version.snapshot
        for number in self.numbers.values():
            self._ssd.clear_changed(number)

    def refresh(self) -> None:
        """Reads `at` again if the database was reopened, because a merge that failed may have been written."""
        if self._ssd.database.openings != self._openings:
            self.at = self._ssd.marker(AT) or ""
            self._openings = self._ssd.database.openings

    def changed(self, name: str) -> Iterator[np.ndarray]:
        """Yields ids (n,) of a table, ascending, that merges changed since the version was loaded, some at a time."""
        return self._ssd.changed(self.numbers[name])

    def markers(self, at: str, words: Mapping[str, str | None]) -> dict[str, str | None]:
        """Returns the markers of a merge that leads to a snapshot."""
        return {AT: at, **{caller_marker(name): value for name, value in words.items()}}

    def holds(self, version: TableSource) -> bool:
        """Returns whether SSD was filled with this version; deltas may have been merged since."""
        return (
            self.at != ""
            and self._ssd.marker(_VERSION) == version.snapshot
            and all(self._has_table(version, spec) for spec in version.tables if spec.name in self.numbers)
            and not any(self._ssd.marker(f"content.{name}") for name in self._known() if name not in self.numbers)
        )

    def _has_table(self, version: TableSource, spec: TableSpec) -> bool:
        return self._ssd.marker(f"content.{spec.name}") == _content(version, spec)

    def _load_table(self, version: TableSource, spec: TableSpec, progress: Progress | None, pace: Pace) -> None:
        number = self.numbers[spec.name]
        if self._has_table(version, spec) and next(self._ssd.changed(number), None) is None:
            return
        marker = f"content.{spec.name}"
        self._ssd.set_marker(marker, None)
        self._ssd.clear(number)
        self._ssd.clear_changed(number)
        self._ssd.bulk_load(
            number,
            ((shard.ids, shard.encoded) for shard in version.shards(spec.name)),
            None if progress is None else lambda done: progress(spec.name, done, spec.rows),
            pace=pace,
            row_type=spec.row_type,
        )
        self._ssd.set_marker(marker, _content(version, spec))

    def _numbered(self) -> dict[str, int]:
        # A table keeps its number on SSD for as long as the folder lives, whatever order a model names its tables in.
        known = self._known()
        fresh = [name for name in self._names if name not in known]
        if fresh:
            for name in fresh:
                known[name] = max(known.values(), default=-1) + 1
                if known[name] >= MAX_TABLES:
                    raise StoreError(
                        f"{self._ssd.path}: the store has seen {MAX_TABLES} tables, as many as it has numbers for; "
                        "delete the folder to rebuild it"
                    )
            self._ssd.set_marker(_TABLES, json.dumps(known))
        return {name: known[name] for name in self._names}

    def _forget_other_tables(self) -> None:
        for name, number in self._known().items():
            if name not in self.numbers:
                self._ssd.set_marker(f"content.{name}", None)
                self._ssd.clear(number)
                self._ssd.clear_changed(number)

    def _known(self) -> dict[str, int]:
        known: dict[str, int] = json.loads(self._ssd.marker(_TABLES) or "{}")
        return known


def _content(version: TableSource, spec: TableSpec) -> str:
    row_type = "" if spec.row_type == "fp32" else f"{spec.row_type}:"
    return f"{spec.dim}:{row_type}{version.table_digest(spec.name)}"
