"""Which card has which row, where several cards share the rows of a store.

    hot rows    on every card that asks for them often
    cold rows   on the card whose part they are, by a hash of table and id; others read them there

Where a row lies is a matter of speed alone: each card's cache has the rows of the snapshots that it answers for, or
says nothing, and what is found on no card is a miss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage._table import CardCache
from storage.errors import ConfigError
from storage.tiers.arrays import Ids

# As many as a batch's header has room for.
MOST_CARDS = 16


@dataclass(frozen=True)
class Placement:
    """cards: their indexes, ascending, 2 to 16; a card's part has the number of its place among them."""

    cards: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not 2 <= len(self.cards) <= MOST_CARDS or list(self.cards) != sorted(set(self.cards)):
            raise ConfigError(
                f"hbm_placement: rows are shared by 2 to {MOST_CARDS} GPUs, got {', '.join(map(str, self.cards))}",
                field="parameters.hbm_placement",
            )

    def part_of(self, card: int) -> int | None:
        """The part of a card; None where it has none."""
        return self.cards.index(card) if card in self.cards else None

    def parts(self, table: int, ids: Ids) -> np.ndarray:
        """(n,) uint8: whose each id is."""
        return CardCache.parts_of(table, ids, len(self.cards))
