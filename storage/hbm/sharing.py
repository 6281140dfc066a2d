"""Lookups of a session where several GPUs share rows: it is inside at its own GPU, and at each that it may read
from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from storage.hbm.placement import Placement
from storage.hbm.sight import Reader, Sight
from storage.hbm.tier import HbmTier


class SharingTiers(Protocol):
    """Interface to the tiers of a store that a reader uses."""

    @property
    def placement(self) -> Placement | None:
        """The placement of rows on the GPUs; None where each GPU has the rows that are asked of it."""

    @property
    def tiers(self) -> Mapping[int, HbmTier]:
        """The open tiers, by the index of the GPU."""


class SharedReader:
    """A Reader over several GPUs, for one session. Not thread-safe.

    On a GPU that does not answer for a snapshot nothing is found.
    """

    def __init__(self, own: Reader, card: int, cards: SharingTiers) -> None:
        """Wraps `own`, the reader of the session's GPU, whose index is `card`."""
        self._own = own
        self._card = card
        self._cards = cards
        self._peers: dict[int, tuple[HbmTier, Reader]] = {}
        self._inside: list[Reader] = []

    def enter(self, mask: int) -> Sight | None:
        """Enters as Reader does; returns None where the session's own GPU does not answer."""
        placement = self._cards.placement
        part = None if placement is None else placement.part_of(self._card)
        if placement is None or part is None:
            return self._own.enter(mask)
        # Readers are made before it is inside anywhere: a session that is inside never waits.
        readers = [None if card == self._card else self._reader(card) for card in placement.cards]
        sight = self._own.enter(mask)
        if sight is None:
            return None
        peers: list[Sight | None] = []
        try:
            for reader in readers:
                peer = None if reader is None else reader.enter(mask)
                if peer is not None:
                    assert reader is not None
                    self._inside.append(reader)
                peers.append(peer)
        except BaseException:
            self.leave()
            raise
        return replace(sight, peers=tuple(peers), part=part)

    def leave(self) -> None:
        """Leaves as Reader does."""
        self._own.leave()
        for reader in self._inside:
            reader.leave()
        self._inside.clear()

    def _reader(self, card: int) -> Reader | None:
        tier = self._cards.tiers.get(card)
        known = self._peers.get(card)
        if known is None or known[0] is not tier:
            if tier is None:
                self._peers.pop(card, None)
                return None
            known = self._peers[card] = (tier, tier.reader())
        return known[1]
