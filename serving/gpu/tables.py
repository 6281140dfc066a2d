"""Opens a model's tables on a GPU: the store's cache of rows there, which versions over one store share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from serving.gpu.batch import GpuPacking
from serving.gpu.driver import Driver
from serving.gpu.features import gpu_features
from serving.gpu.sharing import CHAINS_BYTES, SessionSharing
from serving.gpu.staging import InputLayout
from storage.checkpoint.manifest import GraphEntry
from storage.errors import ConfigError, DeviceError, StoreError, Unsupported
from storage.features import FeatureSpec
from storage.hbm.gpus import gpus_of
from storage.hbm.tier import HbmTier
from storage.tiers.tiered import TieredStore

logger = logging.getLogger("emberline.serving")

# Fraction (1 / _SHARE) of the GPU's free memory for a version that does not configure one.
_SHARE = 4

# Users of each tier. Guarded by the lock of the tier's store.
_users: WeakKeyDictionary[HbmTier, int] = WeakKeyDictionary()
# A cache that opens may wait for compilers, one that closes for the SSD. A store's lock is taken before a GPU's.
_locks: WeakKeyDictionary[object, threading.Lock] = WeakKeyDictionary()
_adding = threading.Lock()


@dataclass(frozen=True)
class GpuTables:
    """The cache of rows of one store on one GPU, as a version uses it."""

    store: TieredStore
    #: The cache of rows.
    tier: HbmTier
    #: How a batch's ids come to the GPU.
    packing: GpuPacking
    #: True if sessions look on other GPUs too.
    shares_rows: bool = False

    def session_sharing(self) -> SessionSharing | None:
        """Returns the hook of one session's lookups; None where each GPU has rows of its own. Raises DeviceError."""
        return SessionSharing(self.tier.device, self.store, self.tier, self.packing) if self.shares_rows else None

    def close(self) -> None:
        """Frees the memory when the cache has no other user. No session of this version is left."""
        with _lock_of(self.store):
            left = _users.get(self.tier, 1) - 1
            _users[self.tier] = left
            if left == 0:
                gpus_of(self.store).close(self.tier.device.info.index)


def prepare_gpus(store: TieredStore, mask: int) -> None:
    """Makes every GPU ready to answer for a snapshot before requests ask for it; a failure costs hits alone."""
    if all(tier.is_prepared(mask) for tier in gpus_of(store).tiers.values()):
        return
    try:
        store.prepare(mask)
    except StoreError as error:
        logger.warning("rows of a snapshot are looked up on the host for a while: %s", error)


def open_gpu_tables(
    name: str,
    driver: Driver,
    spec: FeatureSpec,
    store: TieredStore,
    graph: GraphEntry,
    user_places: Sequence[int],
    inputs: InputLayout,
    hbm_bytes: int | None,
    *,
    shares_rows: bool = False,
) -> GpuTables | None:
    """Caches the store's rows on a GPU, or shares the cache that is there.

    name: of model and version. hbm_bytes: what rows may take there; None for a quarter of what is free. shares_rows:
    whether the version's GPUs share rows (`storage.hbm.sharing`). None where the host has to look up, which the log
    says. Raises DeviceError, ConfigError.
    """
    if hbm_bytes == 0 or not store.tables:
        return None
    try:
        features = gpu_features(spec, store.tables, graph, frozenset(user_places))
    except Unsupported as error:
        logger.warning("%s: rows are looked up on the host, not on %s: %s", name, driver.info, error)
        return None
    packing = GpuPacking(features, inputs, len(store.tables), reserved_bytes=CHAINS_BYTES if shares_rows else 0)
    driver.enter_thread()
    with _lock_of(store):
        index = driver.info.index
        tier = gpus_of(store).tiers.get(index)
        if tier is not None and tier.replica is None and not _users.get(tier):
            gpus_of(store).close(index)  # given up, and without users
            tier = None
        if tier is None:
            with _lock_of(driver):  # no other cache takes of the free memory meanwhile
                size = driver.memory().free // _SHARE if hbm_bytes is None else hbm_bytes
                tier = gpus_of(store).open(driver, max(1, size))
            stats = tier.stats()
            logger.info(
                "%s: on %s: %.0f MiB for the rows that are asked for most, at most %d",
                name,
                driver.info,
                stats.device_bytes / 2**20,
                stats.capacity_rows,
            )
        elif tier.device is not driver:
            raise ConfigError(f"{driver.info}: the store has a cache on another one of this number", field="hbm_bytes")
        elif tier.replica is None:
            raise DeviceError(f"{driver.info}: the cache of rows that versions share was given up: {tier.trouble}")
        elif hbm_bytes is not None and hbm_bytes != tier.hbm_bytes:
            logger.info("%s: on %s: the cache of rows gets %d bytes", name, driver.info, hbm_bytes)
            gpus_of(store).resize(index, hbm_bytes)
        _users[tier] = _users.get(tier, 0) + 1
    return GpuTables(store, tier, packing, shares_rows)


def _lock_of(whose: TieredStore | Driver) -> threading.Lock:
    """Returns the lock of a store or of a GPU."""
    with _adding:
        return _locks.setdefault(whose, threading.Lock())
