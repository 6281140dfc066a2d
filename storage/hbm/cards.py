"""The HBM tiers of one store, one a card."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from storage.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from storage.hbm.device import Device
    from storage.hbm.tier import HbmTier
    from storage.hbm.worker import HbmWorker
    from storage.tiers.overlays import Overlay
    from storage.tiers.tiered import TieredStore


class Cards:
    """By the index of the card. Any thread."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._tiers: Mapping[int, HbmTier] = {}  # replaced whole
        self._workers: dict[int, HbmWorker] = {}

    @property
    def tiers(self) -> Mapping[int, HbmTier]:
        """Those that are open, given up or not."""
        return self._tiers

    def open(self, device: Device, hbm_bytes: int) -> HbmTier:
        """Caches the store's hottest rows on a card, from now on. Filling goes on in the background.

        hbm_bytes: what rows, index and marks may take there. Raises ConfigError, DeviceError.
        """
        from storage.hbm.tier import HbmTier
        from storage.hbm.worker import HbmWorker

        index = device.info.index
        with self._lock:
            if index in self._tiers:
                raise ConfigError(f"{device.info}: the store has a cache on it already", field="hbm_bytes")
            tier = HbmTier(self._store, device, hbm_bytes)
            self._tiers = {**self._tiers, index: tier}
            self._workers[index] = HbmWorker(tier, self._store)
        return tier

    def close(self, index: int) -> None:
        """Gives a card's memory back; without effect where there is no cache."""
        with self._lock:
            tier, worker = self._tiers.get(index), self._workers.pop(index, None)
            self._tiers = {number: each for number, each in self._tiers.items() if number != index}
        if worker is not None:
            worker.close()
        if tier is not None:
            tier.close()

    def close_all(self) -> None:
        """As `close`, of every card."""
        for index in list(self._tiers):
            self.close(index)

    def prepare(self, mask: int) -> None:
        """Brings what a snapshot has otherwise to every card, before it is served."""
        for tier in self._tiers.values():
            tier.prepare(mask)

    def leave(self, overlay: Overlay, *, merged: bool) -> None:
        """Before an overlay is merged or discarded."""
        for tier in self._tiers.values():
            tier.leave(overlay, merged=merged)

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
