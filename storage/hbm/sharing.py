"""Shares the rows of a store among several GPUs (`hbm_placement: shard`).

    hot rows    on every GPU whose sessions ask for them often
    cold rows   on the GPU whose part they are, by a hash of table and id; sessions of the other GPUs read them there

The place of a row only affects speed: the cache of a GPU has rows of the snapshots that it answers for and of no other,
and an id that no GPU has is a miss. Decision 31 has the reasons.

The rest of the package has one hook for sharing, `HbmTier.sharing`, which is None in the usual case, where each GPU has
rows of its own. `sharing_of` returns the object that sets it. A session that also searches other GPUs has a
`SharedReader`, and launches `across(call, ...)` instead of a call of `lookup_kernels`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from storage._table import GpuCache
from storage.errors import ConfigError
from storage.hbm.device import Device, KernelCall
from storage.hbm.filling import hottest
from storage.hbm.gpus import Gpus, gpus_of
from storage.hbm.kernel_sources import ROW_TYPES
from storage.hbm.lookup_kernels import MOST_CHAIN
from storage.hbm.offers import Offers
from storage.hbm.replica import Replica
from storage.hbm.tier import HbmTier
from storage.hbm.visibility import Reader, VisibleSnapshot
from storage.tiers.arrays import Flags, Ids
from storage.tiers.dram_cache import DramCache
from storage.tiers.tiered import TieredStore

# The number of GPUs that a batch's header has room for.
MOST_GPUS = 16
# As in cuda/lookup_across.cuh.
PEER_CHAINS_WORD = 11
PEER_WORDS = 5
PEER_CHAIN_WORDS = 1 + MOST_CHAIN

# Samples of uses that wait for the worker of a GPU.
_MOST_USED = 1024
_KERNELS = {
    **{f"lookup_gather_{row_type}_fp32": f"lookup_gather_across_{row_type}" for row_type in ROW_TYPES},
    **{f"lookup_pool_{row_type}": f"lookup_pool_across_{row_type}" for row_type in ROW_TYPES},
}


@dataclass(frozen=True)
class Placement:
    """Divides the rows of a store into one part for each GPU that shares them."""

    #: The indexes of 2 to 16 GPUs, ascending. The number of a part is the position of its GPU among them.
    gpus: tuple[int, ...]

    def __post_init__(self) -> None:
        """Checks the GPUs. Raises ConfigError."""
        if not 2 <= len(self.gpus) <= MOST_GPUS or list(self.gpus) != sorted(set(self.gpus)):
            raise ConfigError(
                f"hbm_placement: rows are shared by 2 to {MOST_GPUS} GPUs, got {', '.join(map(str, self.gpus))}",
                field="parameters.hbm_placement",
            )

    def part_of(self, gpu: int) -> int | None:
        """Returns the part of a GPU; None where it has none."""
        return self.gpus.index(gpu) if gpu in self.gpus else None

    def parts(self, table: int, ids: Ids) -> np.ndarray:
        """Returns the part that each id belongs to, (n,) uint8."""
        return GpuCache.parts_of(table, ids, len(self.gpus))


class SharedTier:
    """The hook `HbmTier.sharing` of a GPU that shares rows, for as long as a placement holds. Thread-safe.

    `missed` holds ids that sessions found on no GPU, and `used` a sample of the ids that sessions of this GPU asked
    for.
    """

    def __init__(
        self, tier: HbmTier, placement: Placement, part: int, tiers: Callable[[], Mapping[int, HbmTier]]
    ) -> None:
        """Makes a hook. part: this GPU's. tiers: returns the open tiers of the store, by the index of the GPU."""
        self.missed, self.used = Offers(), Offers(_MOST_USED)
        self._tier = tier
        self._placement = placement
        self._part = part
        self._tiers = tiers

    @property
    def place(self) -> tuple[int, int]:
        """The number of GPUs that share rows, and the number of this one's part."""
        return len(self._placement.gpus), self._part

    def offered(self) -> Iterator[tuple[int, Ids]]:
        """Yields, by table, ids that this GPU may take.

        These are missed ids of its own part, and ids of other parts that its sessions use. Uses of the latter are
        counted here, because marks leave them out.
        """
        for table, ids in self.missed.take():
            yield table, self._keep(table, np.unique(ids))
        for table, ids in self.used.take():
            others = ids[~self._owns(table, ids)]
            self._tier.count_uses(table, others)
            yield table, others

    def hottest(self, cache: DramCache, tables: Sequence[int], rows: int) -> Iterator[tuple[int, Ids, Flags]]:
        """Yields what `filling.hottest` does, for the rows of this GPU's part."""
        for table, ids, counts in hottest(cache, tables, rows * len(self._placement.gpus)):
            own = self._owns(table, ids)
            yield table, ids[own], counts[own]

    def list_name(self, name: str) -> str:
        """Returns the name of the list of hot ids of this part."""
        return f"{name}_{self._part}_of_{len(self._placement.gpus)}"

    def clock(self, turn: int) -> HbmTier:
        """Returns the tier whose policy counts a batch: each tier in turn, since every GPU is asked."""
        tier = self._tiers().get(self._placement.gpus[turn % len(self._placement.gpus)])
        return self._tier if tier is None or tier.replica is None else tier

    def _owns(self, table: int, ids: Ids) -> np.ndarray:
        return np.asarray(self._placement.parts(table, ids) == self._part)

    def _keep(self, table: int, ids: Ids) -> Ids:
        """Returns the missed ids that this GPU takes, and offers the others to the GPUs whose part they are.

        Ids of a GPU without a cache are taken by every GPU that misses them.
        """
        parts, tiers = self._placement.parts(table, ids), self._tiers()
        own = parts == self._part
        for number, gpu in enumerate(self._placement.gpus):
            its = parts == number
            if number == self._part or not its.any():
                continue
            other = tiers.get(gpu)
            if other is None or other.replica is None or not isinstance(other.sharing, SharedTier):
                own |= its
            else:
                other.sharing.missed.put([(table, ids[its])])
        kept: Ids = ids[own]
        return kept


@dataclass(frozen=True)
class SharedVisibleSnapshot(VisibleSnapshot):
    """The data that a lookup needs for one snapshot on several GPUs: this GPU's, and that of its peers."""

    #: The visible snapshots of the GPUs that share rows, by part; None for the own part, and for a GPU that does not
    #: answer for the snapshot. Empty where rows are not shared any more.
    peers: tuple[VisibleSnapshot | None, ...] = ()
    #: This GPU's part.
    part: int = 0

    @property
    def generations(self) -> tuple[int, ...]:
        """This GPU's part, then the generation of each GPU's addresses, 0 for a GPU that is not read."""
        return (self.part, *(0 if visible is None else visible.replica.generation for visible in self.peers))

    def peer_words(self, table: int) -> list[int]:
        """Returns five words for each GPU that describe what it has of a table (cuda/lookup_across.cuh)."""
        return [word for visible in self.peers for word in _words_of(visible, table)]

    @property
    def peer_chains(self) -> list[int]:
        """The chain of differences of each GPU, nine words each (cuda/lookup_across.cuh)."""
        words: list[int] = []
        for visible in self.peers:
            chain = () if visible is None else visible.chain
            words += [-1 if visible is None else len(chain), *chain, *[0] * (MOST_CHAIN - len(chain))]
        return words


def _words_of(visible: VisibleSnapshot | None, table: int) -> list[int]:
    if visible is None:
        return [0] * PEER_WORDS
    replica: Replica = visible.replica
    words = replica.words(table)
    return [*words[:4], words[8]]


class SharedReader:
    """Does for one session what Reader does, at its own GPU and at each that it may read from. Not thread-safe."""

    def __init__(self, sharing: RowSharing, tier: HbmTier) -> None:
        """Makes a reader. tier: that of the session's GPU."""
        self._own = tier.reader()
        self._gpu = tier.device.info.index
        self._sharing = sharing
        self._peers: dict[int, tuple[HbmTier, Reader]] = {}
        self._inside: list[Reader] = []

    def enter(self, mask: int) -> SharedVisibleSnapshot | None:
        """Enters as Reader does; returns None where the own GPU does not answer. Peers that do not are not read."""
        placement = self._sharing.placement
        part = None if placement is None else placement.part_of(self._gpu)
        if placement is None or part is None:
            visible = self._own.enter(mask)
            return None if visible is None else SharedVisibleSnapshot(visible.chain, visible.replica)
        # The readers are made before the session is inside anywhere: a session that is inside waits for nothing.
        readers = [None if gpu == self._gpu else self._reader(gpu) for gpu in placement.gpus]
        visible = self._own.enter(mask)
        if visible is None:
            return None
        peers: list[VisibleSnapshot | None] = []
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
        return SharedVisibleSnapshot(visible.chain, visible.replica, tuple(peers), part)

    def leave(self) -> None:
        """Leaves as Reader does."""
        self._own.leave()
        for reader in self._inside:
            reader.leave()
        self._inside.clear()

    def _reader(self, gpu: int) -> Reader | None:
        tier = self._sharing.tiers.get(gpu)
        known = self._peers.get(gpu)
        if known is None or known[0] is not tier:
            if tier is None:
                self._peers.pop(gpu, None)
                return None
            known = self._peers[gpu] = (tier, tier.reader())
        return known[1]


class RowSharing:
    """Decides which GPUs of a store share its rows, if any. `sharing_of` returns it. Thread-safe."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._lock = threading.Lock()
        self._placement: Placement | None = None
        # The placement that each owner wants, in the order of the calls.
        self._wishes: dict[object, Placement | None] = {}
        self._turn = 0

    @property
    def placement(self) -> Placement | None:
        """The placement in force; None where each GPU has the rows that are asked of it."""
        return self._placement

    @property
    def tiers(self) -> Mapping[int, HbmTier]:
        """The open tiers, by the index of the GPU."""
        return self._gpus.tiers

    def share_rows(self, devices: Sequence[Device], owner: object = None) -> None:
        """Shares rows from now on: hot rows are on each of these GPUs, and cold ones on one of them.

        With fewer than two GPUs each has rows of its own. Call it before the caches open, or while lookups go on: rows
        that lie on another GPU then are missed until they have been brought.

        owner: identifies the caller; the call of the last owner is in force, until `leave`. Raises ConfigError, or
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
        """Withdraws an owner's call: the one before it is in force again. Does nothing when the owner made none."""
        with self._lock:
            self._wishes.pop(owner, None)
        self._place()

    def join(self, tier: HbmTier) -> None:
        """Sets the hook of a GPU's cache that opens. Call it before anything fills the cache."""
        with self._lock:
            self._give(tier)

    def reader(self, tier: HbmTier) -> SharedReader:
        """Makes a reader for one session of a GPU, which may read from the others too."""
        return SharedReader(self, tier)

    def tell(
        self,
        tier: HbmTier,
        lookups: np.ndarray,
        misses: np.ndarray,
        wanted: Sequence[tuple[int, Ids]],
        used: Sequence[tuple[int, Ids]],
    ) -> None:
        """Does what `HbmTier.tell` does, for a session that found rows on other GPUs too.

        used: a sample of the ids that it asked for.
        """
        shared = tier.sharing
        if not isinstance(shared, SharedTier):
            tier.tell(lookups, misses, wanted)
            return
        self._turn += 1
        tier.counts.add(lookups, misses)
        shared.clock(self._turn).counts.age(lookups, misses)
        shared.missed.put(wanted)
        shared.used.put(used)

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
            if changes:
                for tier in self._gpus.tiers.values():
                    self._give(tier)
        if changes:
            self._gpus.refill()

    def _give(self, tier: HbmTier) -> None:
        placement = self._placement
        part = None if placement is None else placement.part_of(tier.device.info.index)
        tier.sharing = (
            None if placement is None or part is None else SharedTier(tier, placement, part, lambda: self._gpus.tiers)
        )


_making = threading.Lock()


def sharing_of(store: TieredStore) -> RowSharing:
    """Returns the object by which the GPUs of a store share rows; the first call makes it. Thread-safe."""
    gpus = gpus_of(store)
    with _making:
        if gpus.sharing is None:
            gpus.sharing = RowSharing(gpus)
        made = gpus.sharing
    assert isinstance(made, RowSharing)
    return made


def across(call: KernelCall, peers: torch.Tensor) -> KernelCall:
    """Returns a lookup of `lookup_kernels` by the kernel that also searches the other GPUs for rows its own misses.

    peers: the words that describe the other GPUs, to which word 11 of each feature points. The memory of those GPUs is
    in none of the call's lists, because the session is inside at each of them. Raises ConfigError for outputs other
    than fp32.
    """
    name = _KERNELS.get(call.name)
    if name is None:
        raise ConfigError(f"output: expected fp32 where GPUs share rows, got {call.name.rpartition('_')[2]}")
    return replace(call, name=name, reads=(*call.reads, peers))
