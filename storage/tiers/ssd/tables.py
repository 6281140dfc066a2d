"""What each table consists of on SSD: a page file, and generations of changes on top of it.

    newer       changes that are still being added to
    older       changes that are being compacted into a new page file; none most of the time
    file        rows of the version, with what was compacted in since

A row is what the newer generation says, else the older one, else the file. A generation's rows lie in RocksDB; which
ids it has is in memory too, so that an id that nobody changed never asks RocksDB.

Whoever reads takes the state of a table once, a fixed object, and goes by it. A state stays true until its older
generation is cleared, which happens after the next state was set: `reads` says what a reader makes of that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from storage._pages import ChangeSet, PageFile
from storage.tiers.ssd.keys import generation_group


@dataclass(frozen=True)
class Generation:
    """Changes of one table. ids: at least those whose rows, or whose absence, RocksDB has under `group`."""

    table: int
    number: int
    ids: ChangeSet

    @classmethod
    def empty(cls, table: int, number: int) -> Generation:
        """A generation without changes."""
        return cls(table, number, ChangeSet())

    @property
    def group(self) -> int:
        """Of its keys."""
        return generation_group(self.table, self.number)


@dataclass(frozen=True, eq=False)
class TableState:
    """One table at one moment; see above."""

    newer: Generation
    older: Generation | None = None
    file: PageFile | None = None

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The newest first."""
        return (self.newer,) if self.older is None else (self.newer, self.older)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever put into it."""
        return self.file is None and not any(len(generation.ids) for generation in self.generations)

    def changed_ids(self) -> np.ndarray:
        """(n,) int64, ascending: ids that any generation may say something of."""
        parts = [generation.ids.sorted() for generation in self.generations]
        return parts[0] if len(parts) == 1 else np.union1d(*parts)

    def frozen(self) -> TableState:
        """Changes go into a new generation from now on."""
        return TableState(Generation.empty(self.newer.table, self.newer.number + 1), self.newer, self.file)

    def compacted(self, file: PageFile | None) -> TableState:
        """The older generation is in the file."""
        return replace(self, older=None, file=file)

    def cleared(self) -> TableState:
        """Nothing is there."""
        return TableState(Generation.empty(self.newer.table, self.newer.number + 1))

    def text(self) -> str:
        """What has to be remembered of it; `parse` reads it."""
        return json.dumps(
            {
                "file": None if self.file is None else self.file.path.rsplit("/", 1)[-1],
                "newer": self.newer.number,
                "older": None if self.older is None else self.older.number,
            }
        )


@dataclass(frozen=True)
class StateText:
    """What the marker of a table says. file: its name, or None. newer, older: numbers of generations."""

    file: str | None
    newer: int
    older: int | None

    @classmethod
    def parse(cls, text: str) -> StateText:
        """Raises ValueError, KeyError and TypeError for what `TableState.text` never wrote."""
        said = json.loads(text)
        return cls(said["file"], int(said["newer"]), None if said["older"] is None else int(said["older"]))
