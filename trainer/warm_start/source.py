"""A trained state to start from, wherever it lies: dense weights by name, and tables whose rows come in pieces.

N ids, D dim, S optimizer values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from storage.checkpoint.table_kinds import ClassesKind, MultiHashKind, QuotientRemainderKind, TableKind
from storage.errors import ConfigError
from storage.features.spec import FeatureSpec
from trainer.models.blocks import WeightLayout

Ids = NDArray[np.int64]
Array = np.ndarray[Any, Any]
#: How many bytes of rows are read at once.
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Piece:
    """Some rows of a table."""

    #: (N,) int64
    ids: Ids
    #: (N, D) float32
    rows: NDArray[np.float32]
    #: (N,) uint32, how often each id was seen.
    counts: NDArray[np.uint32]
    #: (N, S) float32; None where the source has none.
    slots: NDArray[np.float32] | None = None

    def take(self, which: NDArray[np.bool_]) -> Self:
        """Returns the rows that `which` (N,) marks."""
        if which.all():
            return self
        slots = None if self.slots is None else self.slots[which]
        return type(self)(self.ids[which], self.rows[which], self.counts[which], slots)


class Layer(Protocol):
    """The rows of a table that were written together; those of a later layer replace them."""

    @property
    def removed(self) -> Ids:
        """Ids (N,) that earlier layers have and this one erases."""

    def ids(self) -> Iterator[Ids]:
        """Yields the ids of the rows, without reading rows."""

    def pieces(self) -> Iterator[Piece]:
        """Yields the rows, each piece bounded."""


def _no_counts() -> Iterator[tuple[Ids, NDArray[np.uint32]]]:
    return iter(())


@dataclass(frozen=True)
class SourceTable:
    """One table of a source."""

    name: str
    dim: int
    #: Oldest first.
    layers: Sequence[Layer]
    #: The rule of its optimizer values; "" where it has none.
    optimizer: str = ""
    #: Steps of that optimizer.
    steps: int = 0
    #: Yields ids (N,) and their counts (N,), also of ids without a row; a later count replaces an earlier one.
    counts: Callable[[], Iterator[tuple[Ids, NDArray[np.uint32]]]] = _no_counts

    def pieces(self) -> Iterator[Piece]:
        """Yields every row once, in no order. Memory: a piece, and the ids of all layers but the first."""
        known = np.empty(0, np.int64)
        for layer in reversed(self.layers):
            mine = [known]
            for piece in layer.pieces():
                yield piece.take(~_among(piece.ids, known))
                if layer is not self.layers[0]:
                    mine.append(piece.ids)
            known = np.unique(np.concatenate([*mine, layer.removed]))

    def rows(self) -> int:
        """Counts the rows."""
        known, total = np.empty(0, np.int64), 0
        for layer in reversed(self.layers):
            mine = [known]
            for ids in layer.ids():
                total += int(np.count_nonzero(~_among(ids, known)))
                if layer is not self.layers[0]:
                    mine.append(ids)
            known = np.unique(np.concatenate([*mine, layer.removed]))
        return total


@dataclass(frozen=True)
class Source:
    """A trained state.

    layouts: returns the layouts of its weights for a model of a type, by the name of the type; empty for another type.
    """

    #: A text that names it, for messages.
    title: str
    weights: Mapping[str, Array]
    tables: Mapping[str, SourceTable]
    #: The type of its model in the zoo, "" for any other.
    model: str = ""
    spec: FeatureSpec | None = None
    layouts: Mapping[str, WeightLayout] = field(default_factory=dict)
    #: The class of the dense optimizer, "" where its values are not known.
    dense_optimizer: str = ""
    #: Its values by weight and key.
    dense_values: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)


def _among(ids: Ids, known: Ids) -> NDArray[np.bool_]:
    """Returns which of ids (N,) are in known (M,) ascending."""
    if len(known) == 0:
        return np.zeros(len(ids), np.bool_)
    found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, ids), len(known) - 1)] == ids
    return found


def check_whole(kinds: Mapping[str, TableKind], title: str) -> None:
    """Raises ConfigError for a table that is a part of another one, of which a start makes nothing."""
    for name, kind in kinds.items():
        if isinstance(kind, ClassesKind | MultiHashKind | QuotientRemainderKind):
            raise ConfigError(
                f"{title}: its table {kind.table!r} of the kind {kind.type} is made of several ({name!r}); a model can "
                "start from one where no table is",
                field="start_from",
            )
