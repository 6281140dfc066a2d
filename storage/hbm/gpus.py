"""Manages the HBM tiers of one store, one for each GPU."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from storage.errors import ConfigError, StoreError
from storage.hbm.device import Device
from storage.hbm.statistics import held_of
from storage.hbm.tier import HbmTier
from storage.hbm.worker import HbmWorker
from storage.tiers.listeners import Held
from storage.tiers.overlays import Overlay
from storage.tiers.tiered import TieredStore


def gpus_of(store: TieredStore) -> Gpus:
    """Returns the HBM tiers of a store; the first call registers them with it. Thread-safe."""
    return store.listeners.plugged(Gpus, lambda: Gpus(store))


class Sharing(Protocol):
    """The hook of a store whose GPUs share rows (`storage.hbm.sharing`)."""

    def join(self, tier: HbmTier) -> None:
        """Sets the hook of a GPU's cache that opens. Called before anything fills the cache."""


class Gpus:
    """Holds the HBM tiers of a store by the index of the GPU, as a listener of the store; see `gpus_of`. Thread-safe.

    `sharing` is the hook of a store whose GPUs share rows; None where none ever did.
    """

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._tiers: Mapping[int, HbmTier] = {}  # replaced whole
        self._workers: dict[int, HbmWorker] = {}
        self._closed = False
        self.sharing: Sharing | None = None

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
            tier = HbmTier(self._store, device, hbm_bytes)
            self._tiers = {**self._tiers, index: tier}
            if self.sharing is not None:
                self.sharing.join(tier)
            self._workers[index] = HbmWorker(tier, self._store)
        return tier

    def close(self, index: int) -> None:
        """Frees a GPU's memory; does nothing where there is no cache."""
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

    def resize(self, index: int, hbm_bytes: int) -> None:
        """Changes the size while lookups run. Raises ConfigError, DeviceError, StoreError where there is no cache."""
        with self._lock:
            tier, worker = self._tiers.get(index), self._workers.get(index)
        if tier is None or worker is None:
            raise StoreError(f"GPU {index}: the store has no cache on it")
        tier.resize(hbm_bytes)
        worker.refill()

    def refill(self) -> None:
        """Makes every GPU fill its free room again."""
        with self._lock:
            workers = list(self._workers.values())
        for worker in workers:
            worker.refill()

    def wait_filled(self, timeout_s: float | None = None) -> bool:
        """Waits until every GPU holds the hottest rows that fit; returns False when the time runs out before."""
        with self._lock:
            workers = list(self._workers.values())
        return all(worker.wait_filled(timeout_s) for worker in workers)
