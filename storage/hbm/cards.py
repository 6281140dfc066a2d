"""The HBM tiers of one store, one for each GPU."""

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
    """Returns the HBM tiers of a store; the first call registers them with it. Thread-safe."""
    return store.listeners.plugged(Cards, lambda: Cards(store))


class Cards:
    """HBM tiers by the index of their GPU. A listener of its store, see `cards_of`. Thread-safe."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._tiers: Mapping[int, HbmTier] = {}  # replaced whole
        self._workers: dict[int, HbmWorker] = {}
        self._closed = False
        self._placement: Placement | None = None
        # Wishes by owner, the latest last.
        self._wishes: dict[object, Placement | None] = {}
        self._turn = 0

    @property
    def placement(self) -> Placement | None:
        """The placement of rows on the GPUs; None where each GPU has the rows that are asked of it."""
        return self._placement

    @property
    def tiers(self) -> Mapping[int, HbmTier]:
        """The open tiers, given up or not."""
        return self._tiers

    def open(self, device: Device, hbm_bytes: int) -> HbmTier:
        """Caches the store's hottest rows on a GPU from this call on. Filling continues in the background.

        hbm_bytes: bytes that rows, index and marks may take there. Raises ConfigError, DeviceError, StoreError.
        """
        index = device.info.index
        with self._lock:  # the lock keeps retirements from reaching a tier meanwhile
            if self._closed:
                raise StoreError("the store is closed")
            if index in self._tiers:
                raise ConfigError(f"{device.info}: the store has a cache on it already", field="hbm_bytes")
            tier = HbmTier(self._store, device, hbm_bytes, self)
            self._tiers = {**self._tiers, index: tier}
            self._workers[index] = HbmWorker(tier, self._store, self)
        return tier

    def close(self, index: int) -> None:
        """Frees a GPU's memory; no effect where there is no cache."""
        with self._lock:
            worker = self._workers.pop(index, None)
        if worker is None:
            return
        worker.close()
        with self._lock:  # merges notify the tier for as long as sessions may ask it
            self._tiers[index].close()
            self._tiers = {number: each for number, each in self._tiers.items() if number != index}

    def close_all(self) -> None:
        """Closes the tiers of every GPU; none can be opened any more."""
        with self._lock:
            self._closed = True
        for index in list(self._tiers):
            self.close(index)

    def prepare(self, mask: int) -> None:
        """Brings the rows in which a snapshot differs to every GPU, before it is served. Raises StoreError."""
        for tier in self._tiers.values():
            tier.prepare(mask)

    def retire(self, overlay: Overlay, *, merged: bool) -> None:
        """Notifies every tier, see HbmTier. A tier opened later finds the overlay in the store's `retiring_now`."""
        with self._lock:
            for tier in self._tiers.values():
                tier.retire(overlay, merged=merged)

    @property
    def in_use(self) -> bool:
        """True if a GPU has a cache."""
        return bool(self._tiers)

    def held(self) -> Held:
        """Returns the totals over all GPUs."""
        return held_of([tier.stats() for tier in self._tiers.values()], self._store.tables)

    def share_rows(self, devices: Sequence[Device], owner: object = None) -> None:
        """Keeps hot rows on each of these GPUs and cold rows on one of them; fewer than two: each GPU has its own.

        Call it before `open`, or while lookups run: a row that then belongs elsewhere is missed until it has arrived.
        owner: identifies the caller's wish; the wish of the latest owner holds, until `leave`. Raises ConfigError, or
        DeviceError where one GPU cannot read another's memory: nothing is shared then.
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
        """Withdraws an owner's wish: the one before it holds. No effect where there is none."""
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
        """Returns a reader for one session of a GPU, which may read from the other GPUs too."""
        return SharedReader(tier.reader(), tier.device.info.index, self)

    # The methods below are called by tiers.

    def share(self, tier: HbmTier) -> tuple[int, int]:
        """Returns how many GPUs share rows with this one, itself included, and the number of its part."""
        placement = self._placement
        part = None if placement is None else placement.part_of(tier.device.info.index)
        return (1, 0) if placement is None or part is None else (len(placement.cards), part)

    def next_clock(self, tier: HbmTier) -> HbmTier:
        """Returns the tier whose policy counts a batch of this GPU.

        GPUs that share rows take turns, since each is asked.
        """
        placement = self._placement
        if placement is None or tier.device.info.index not in placement.cards:
            return tier
        self._turn += 1
        heard = self._tiers.get(placement.cards[self._turn % len(placement.cards)], tier)
        return tier if heard.replica is None else heard

    def keep(self, tier: HbmTier, table: int, ids: Ids) -> Ids:
        """Returns the missed ids that this GPU takes; the others are offered to the GPUs whose part they are.

        Ids of a GPU without a cache are taken by every GPU for itself.
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
        """Returns which ids belong to this GPU's part, (n,) bool; all where GPUs share nothing."""
        parts, part = self._parts(tier, table, ids)
        return np.ones(len(ids), np.bool_) if parts is None else parts == part

    def _parts(self, tier: HbmTier, table: int, ids: Ids) -> tuple[np.ndarray | None, int]:
        placement = self._placement
        part = None if placement is None else placement.part_of(tier.device.info.index)
        if placement is None or part is None:
            return None, 0
        return placement.parts(table, ids), part

    def resize(self, index: int, hbm_bytes: int) -> None:
        """Changes the size while lookups run. Raises ConfigError, DeviceError, StoreError where there is no cache."""
        with self._lock:
            tier, worker = self._tiers.get(index), self._workers.get(index)
        if tier is None or worker is None:
            raise StoreError(f"GPU {index}: the store has no cache on it")
        tier.resize(hbm_bytes)
        worker.refill()

    def wait_filled(self, timeout_s: float | None = None) -> bool:
        """Waits until every GPU holds the hottest rows that fit; returns False when one does not by then."""
        with self._lock:
            workers = list(self._workers.values())
        return all(worker.wait_filled(timeout_s) for worker in workers)
