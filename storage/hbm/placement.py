"""Places rows on GPUs, where several GPUs share the rows of a store.

    hot rows    on every GPU that asks for them often
    cold rows   on the GPU whose part they are, by a hash of table and id; others read them there

The place of a row affects speed alone: each GPU's cache has the rows of the snapshots that it answers for, or finds
nothing, and an id that is found on no GPU is a miss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage._table import CardCache
from storage.errors import ConfigError
from storage.tiers.arrays import Ids

# The number of GPUs that a batch's header has room for.
MOST_CARDS = 16


@dataclass(frozen=True)
class Placement:
    """The GPUs that share rows."""

    #: Their indexes, ascending, 2 to 16; a GPU's part is numbered by its place among them.
    cards: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises ConfigError for too few, too many or unordered indexes."""
        if not 2 <= len(self.cards) <= MOST_CARDS or list(self.cards) != sorted(set(self.cards)):
            raise ConfigError(
                f"hbm_placement: rows are shared by 2 to {MOST_CARDS} GPUs, got {', '.join(map(str, self.cards))}",
                field="parameters.hbm_placement",
            )

    def part_of(self, card: int) -> int | None:
        """Returns the part of a GPU; None where it has none."""
        return self.cards.index(card) if card in self.cards else None

    def parts(self, table: int, ids: Ids) -> np.ndarray:
        """Returns the part of each id, (n,) uint8."""
        return CardCache.parts_of(table, ids, len(self.cards))
