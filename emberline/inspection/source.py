"""Defines what an analysis reads: a table of a run or of a published snapshot, in pieces of bounded size.

N rows of a piece, D dim, S optimizer values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from storage.errors import NotFound
from storage.features.strict_model import did_you_mean
from storage.specs import TableSpec

if TYPE_CHECKING:
    from storage.features import FeatureSpec

PIECE_BYTES = 16 << 20
LEAST_ROWS = 1024


@dataclass(frozen=True)
class Piece:
    """Some rows of a table."""

    #: (N,) int64, ascending over all pieces.
    ids: NDArray[np.int64]
    #: (N, D) float32.
    rows: NDArray[np.float32]
    #: (N,) occurrences of each id in training.
    counts: NDArray[np.int64]
    #: (N, S) float32; None where the source has none.
    slots: NDArray[np.float32] | None = None
    #: (N,) number of the commit or publish of the last change.
    stamps: NDArray[np.uint32] | None = None
    #: (N,) tick of the last use.
    ticks: NDArray[np.uint32] | None = None

    def __getitem__(self, which: slice) -> Piece:
        parts = (self.ids, self.rows, self.counts, self.slots, self.stamps, self.ticks)
        return Piece(*(None if part is None else part[which] for part in parts))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.ids)


Waiting = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class History:
    """The state of a run's table by which last uses are measured."""

    #: The newest stamp.
    stamp: int
    #: The newest tick; 1, at which every table begins, when the run evicts nothing.
    tick: int
    #: Last stamps, ascending, that the publishes of the run hold.
    publishes: tuple[int, ...] = ()


@dataclass(frozen=True)
class TableFacts:
    """Holds what is known of a table before its rows are read."""

    spec: TableSpec
    #: Number S of optimizer values; 0 in a published version.
    slots: int = 0
    #: Name of the sparse optimizer, "" in a published version.
    optimizer: str = ""
    #: The admission threshold; None when it is not known.
    admit_after: int | None = None
    #: True when counts are rounded down to a published byte.
    approximate: bool = False
    history: History | None = None

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.spec.name

    @property
    def dim(self) -> int:
        """Values of a row."""
        return self.spec.dim

    @property
    def piece_rows(self) -> int:
        """Rows of a piece, at most."""
        return max(LEAST_ROWS, PIECE_BYTES // (4 * (self.spec.dim + self.slots) + 64))


class TableSource(ABC):
    """A table that can be read, more than once."""

    facts: TableFacts

    @property
    @abstractmethod
    def total(self) -> int:
        """Rows that pieces() gives, or somewhat more: for progress."""

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Yields the rows by ascending ids, at most facts.piece_rows at once. Raises CheckpointError."""

    def waiting(self) -> Iterator[Waiting]:
        """Yields ids (N,) ascending that were seen and have no row, and their counts (N,)."""
        return iter(())


@dataclass(frozen=True)
class Origin:
    """A run or a published snapshot, with its tables."""

    #: One line that says what it is.
    title: str
    #: "run" or "published".
    kind: str
    path: str
    spec: FeatureSpec
    tables: dict[str, TableSource] = field(default_factory=dict)

    def chosen(self, names: Sequence[str]) -> list[TableSource]:
        """Returns the tables of these names, each once, all without names. Raises NotFound for an unknown one."""
        for name in names:
            if name not in self.tables:
                raise NotFound(f"--table: {self.path} has no table {name!r}{did_you_mean(name, self.tables)}")
        return [self.tables[name] for name in dict.fromkeys(names or self.tables)]
