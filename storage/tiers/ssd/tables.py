"""A table on SSD consists of a page file, and generations of changes on top of it.

    newer       changes that are still being added to
    older       changes that are being compacted into a new page file; none most of the time
    file        rows of the version, with what was compacted in since

A row is that of the newer generation if this has the id, else that of the older one, else that of the file. A
generation's rows lie in RocksDB; the set of its ids is in memory too, so that RocksDB is never asked for an id that was
not changed.

A reader takes the state of a table once, an immutable object, and uses it throughout. A state stays valid until its
older generation is cleared, which happens after the next state was set: `reads` explains how a reader handles that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from storage._pages import ChangeSet, PageFile
from storage.tiers.ssd.keys import generation_group


@dataclass(frozen=True)
class Generation:
    """A set of changes of one table."""

    table: int
    number: int
    #: At least the ids whose rows, or whose absence, RocksDB has under `group`.
    ids: ChangeSet

    @classmethod
    def empty(cls, table: int, number: int) -> Generation:
        """Makes a generation without changes."""
        return cls(table, number, ChangeSet())

    @property
    def group(self) -> int:
        """The group of its keys."""
        return generation_group(self.table, self.number)


@dataclass(frozen=True, eq=False)
class TableState:
    """The state of one table at one moment, as the module describes it."""

    newer: Generation
    older: Generation | None = None
    file: PageFile | None = None

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The generations, the newest first."""
        return (self.newer,) if self.older is None else (self.newer, self.older)

    @property
    def is_empty(self) -> bool:
        """True when the table has neither a file nor changes."""
        return self.file is None and not any(len(generation.ids) for generation in self.generations)

    def changed_ids(self) -> np.ndarray:
        """Returns the ids (n,) int64, ascending, that any generation may have a change of."""
        parts = [generation.ids.sorted() for generation in self.generations]
        return parts[0] if len(parts) == 1 else np.union1d(*parts)

    def frozen(self) -> TableState:
        """Returns the state in which changes go into a new generation."""
        return TableState(Generation.empty(self.newer.table, self.newer.number + 1), self.newer, self.file)

    def compacted(self, file: PageFile | None) -> TableState:
        """Returns the state in which the file contains the older generation."""
        return replace(self, older=None, file=file)

    def cleared(self) -> TableState:
        """Returns the state of an empty table."""
        return TableState(Generation.empty(self.newer.table, self.newer.number + 1))

    def text(self) -> str:
        """Returns the text of its durable marker, which `StateText.parse` reads."""
        return json.dumps(
            {
                "file": None if self.file is None else self.file.path.rsplit("/", 1)[-1],
                "newer": self.newer.number,
                "older": None if self.older is None else self.older.number,
            }
        )


@dataclass(frozen=True)
class StateText:
    """The contents of a table's durable marker."""

    #: The name of the page file, or None.
    file: str | None
    #: The number of the newer generation.
    newer: int
    #: The number of the older generation, or None.
    older: int | None

    @classmethod
    def parse(cls, text: str) -> StateText:
        """Parses a marker. Raises ValueError, KeyError or TypeError for a text that `TableState.text` never wrote."""
        said = json.loads(text)
        return cls(said["file"], int(said["newer"]), None if said["older"] is None else int(said["older"]))
