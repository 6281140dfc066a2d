"""The HBM tiers of one store, one a card."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from storage.errors import ConfigError, StoreError
from storage.hbm.device import Device
from storage.hbm.placement import Placement
from storage.hbm.sharing import SharedReader
from storage.hbm.statistics import held_of
from storage.hbm.tier import HbmTier
from storage.hbm.worker import HbmWorker
from storage.tiers.arrays import Ids
from storage.tiers.listeners import Held
from storage.tiers.overlays import Overlay
from storage.tiers.tiered import TieredStore


def cards_of(store: TieredStore) -> Cards:
    """The HBM tiers of a store; they are plugged into it by the first call. Any thread."""
    return store.listeners.plugged(Cards, lambda: Cards(store))


class Cards:
    """By the index of the card. A listener of its store, see `cards_of`. Any thread."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._tiers: Mapping[int, HbmTier] = {}  # replaced whole
        self._workers: dict[int, HbmWorker] = {}
        self._closed = False
        self._placement: Placement | None = None
        # By owner, the last one last.
        self._wishes: dict[object, Placement | None] = {}
        self._turn = 0

    @property
    def placement(self) -> Placement | None:
        """Which card has which row; None where each has those that are asked of it."""
        return self._placement

    @property
    def tiers(self) -> Mapping[int, HbmTier]:
        """Those that are open, given up or not."""
        return self._tiers

    def open(self, device: Device, hbm_bytes: int) -> HbmTier:
        """Caches the store's hottest rows on a card, from now on. Filling goes on in the background.

        hbm_bytes: what rows, index and marks may take there. Raises ConfigError, DeviceError, StoreError.
        """
        index = device.info.index
        with self._lock:  # no tier is told of what retires meanwhile
            if self._closed:
                raise StoreError("the store is closed")
            if index in self._tiers:
                raise ConfigError(f"{device.info}: the store has a cache on it already", field="hbm_bytes")
            tier = HbmTier(self._store, device, hbm_bytes, self)
            self._tiers = {**self._tiers, index: tier}
            self._workers[index] = HbmWorker(tier, self._store, self)
        return tier

    def close(self, index: int) -> None:
        """Gives a card's memory back; without effect where there is no cache."""
        with self._lock:
            worker = self._workers.pop(index, None)
        if worker is None:
            return
        worker.close()
        with self._lock:  # merges tell the tier as long as lanes may ask it
            self._tiers[index].close()
            self._tiers = {number: each for number, each in self._tiers.items() if number != index}

    def close_all(self) -> None:
        """As `close`, of every card; none is opened any more."""
        with self._lock:
            self._closed = True
        for index in list(self._tiers):
            self.close(index)

    def prepare(self, mask: int) -> None:
        """Brings what a snapshot has otherwise to every card, before it is served. Raises StoreError."""
        for tier in self._tiers.values():
            tier.prepare(mask)

    def retire(self, overlay: Overlay, *, merged: bool) -> None:
        """See HbmTier. What is opened later finds it in the store's `retiring_now`."""
        with self._lock:
            for tier in self._tiers.values():
                tier.retire(overlay, merged=merged)

    @property
    def in_use(self) -> bool:
        """Whether a card has a cache."""
        return bool(self._tiers)

    def held(self) -> Held:
        """What all cards hold."""
        return held_of([tier.stats() for tier in self._tiers.values()], self._store.tables)

    def share_rows(self, devices: Sequence[Device], owner: object = None) -> None:
        """From now on hot rows are on each of these cards, and cold ones on one of them; fewer than two: each card has
        its own. Before `open`, or while lookups go on: what is elsewhere then is missed until it has come.

        owner: who wishes so; the wish of the last owner holds, until `leave`. Raises ConfigError, DeviceError where one
        card cannot read another's memory: nothing is shared then.
        """
        placement = None
        try:
            if len(devices) > 1:
                placement = Placement(tuple(sorted(device.info.index for device in devices)))
            for device in devices:
                device.enter_thread()
                for other in devices:
                    if other is not device:
                        device.reach(other)
        except BaseException:
            self._wish(owner, None)
            raise
        self._wish(owner, placement)

    def leave(self, owner: object) -> None:
        """Takes an owner's wish back: the one before it holds. Without effect where there is none."""
        with self._lock:
            self._wishes.pop(owner, None)
        self._place()

    def _wish(self, owner: object, placement: Placement | None) -> None:
        with self._lock:
            self._wishes.pop(owner, None)
            self._wishes[owner] = placement
        self._place()

    def _place(self) -> None:
        with self._lock:
            placement = next(reversed(self._wishes.values()), None)
            changes = placement != self._placement
            self._placement = placement
            workers = list(self._workers.values()) if changes else []
        for worker in workers:
            worker.refill()

    def reader(self, tier: HbmTier) -> SharedReader:
        """For one lane of a card, which may read from the others too."""
        return SharedReader(tier.reader(), tier.device.info.index, self)

    # What tiers ask.

    def share(self, tier: HbmTier) -> tuple[int, int]:
        """How many cards share rows with this one, itself among them, and the number of its part."""
        placement = self._placement
        part = None if placement is None else placement.part_of(tier.device.info.index)
        return (1, 0) if placement is None or part is None else (len(placement.cards), part)

    def next_clock(self, tier: HbmTier) -> HbmTier:
        """Whose policy hears of a batch of this card's: where cards share rows, each in turn, since each is asked."""
        placement = self._placement
        if placement is None or tier.device.info.index not in placement.cards:
            return tier
        self._turn += 1
        heard = self._tiers.get(placement.cards[self._turn % len(placement.cards)], tier)
        return tier if heard.replica is None else heard

    def keep(self, tier: HbmTier, table: int, ids: Ids) -> Ids:
        """Those of some missed ids that this card takes; the others are offered to the cards whose part they are. Ids
        of a card without a cache everybody takes for himself.
        """
        parts, part = self._parts(tier, table, ids)
        if parts is None:
            return ids
        placement = self._placement
        own = parts == part
        for number, card in enumerate(() if placement is None else placement.cards):
            other, its = self._tiers.get(card), parts == number
            if number == part or not its.any():
                continue
            if other is None or other.replica is None:
                own |= its
            else:
                other.offers.put([(table, ids[its])], ())
        kept: Ids = ids[own]
        return kept

    def own(self, tier: HbmTier, table: int, ids: Ids) -> np.ndarray:
        """(n,) bool: which ids are of this card's part; all where cards share nothing."""
        parts, part = self._parts(tier, table, ids)
        return np.ones(len(ids), np.bool_) if parts is None else parts == part

    def _parts(self, tier: HbmTier, table: int, ids: Ids) -> tuple[np.ndarray | None, int]:
        placement = self._placement
        part = None if placement is None else placement.part_of(tier.device.info.index)
        if placement is None or part is None:
            return None, 0
        return placement.parts(table, ids), part

    def resize(self, index: int, hbm_bytes: int) -> None:
        """Another size while lookups go on. Raises ConfigError, DeviceError, StoreError where there is no cache."""
        with self._lock:
            tier, worker = self._tiers.get(index), self._workers.get(index)
        if tier is None or worker is None:
            raise StoreError(f"GPU {index}: the store has no cache on it")
        tier.resize(hbm_bytes)
        worker.refill()

    def wait_filled(self, timeout_s: float | None = None) -> bool:
        """Until every card holds the hottest rows that fit; False when one does not by then."""
        with self._lock:
            workers = list(self._workers.values())
        return all(worker.wait_filled(timeout_s) for worker in workers)
