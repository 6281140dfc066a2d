"""Extends the lookups of a session where GPUs share rows (`hbm_placement: shard`, storage.hbm.sharing).

`GpuLookup` and `GpuKernels` have one hook for it, `sharing`, which is None where a GPU has rows of its own: the usual
case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.gpu.batch import GpuForm, GpuPacking, PackedIds
from storage.hbm.device import Device, KernelCall, Stream
from storage.hbm.sharing import (
    MOST_GPUS,
    PEER_CHAIN_WORDS,
    PEER_CHAINS_WORD,
    PEER_WORDS,
    SharedVisibleSnapshot,
    across,
    sharing_of,
)
from storage.hbm.tier import HbmTier
from storage.hbm.visibility import VisibleSnapshot
from storage.tiers.arrays import Ids
from storage.tiers.tiered import TieredStore

# Bytes in a packed batch for the chains of other GPUs.
CHAINS_BYTES = 8 * PEER_CHAIN_WORDS * MOST_GPUS
# One id in so many, of one batch in so many, shows a GPU's policy what is used of other parts. So a row of another part
# stays where it is used 64 times as often as what it displaces: a read across GPUs costs that much less than the host.
SAMPLED_BATCHES, SAMPLED_IDS = 16, 4


class SessionSharing:
    """The shared rows in the lookups of one session. Allocates everything in the constructor.

    Not thread-safe: the session's thread uses it.
    """

    def __init__(self, device: Device, store: TieredStore, tier: HbmTier, packing: GpuPacking) -> None:
        """packing: layout with CHAINS_BYTES reserved. Raises DeviceError."""
        self._device = device
        self._sharing = sharing_of(store)
        self._tier = tier
        self._packing = packing
        #: Reader in place of the tier's own.
        self.reader = self._sharing.reader(tier)
        size = 8 * PEER_WORDS * MOST_GPUS * packing.feature_count
        self._host_peers, self._peers = device.pinned(size), device.device(size)
        self._chance = np.random.default_rng()
        # Of what was bound last, and no more: a snapshot would keep the replicas of all GPUs alive.
        self._peer_count, self._part = 0, 0
        self._generations: tuple[int, ...] | None = None

    def put_chains(self, form: GpuForm, visible: VisibleSnapshot) -> None:
        """Writes the chains of other GPUs into a packed batch. Call it after `GpuForm.put_chain`."""
        chains = _shared(visible).peer_chains
        form.reserved[: len(chains)] = chains
        for at, header in form.headers:
            header[PEER_CHAINS_WORD] = self._packing.reserved_at - at if chains else 0

    def bind(self, visible: VisibleSnapshot, stream: Stream) -> bool:
        """Copies what other GPUs have on the stream; the caller waits for the copy before the next batch.

        Returns False, without a copy, where it has not changed: then the words of the features are the same, too.
        """
        shared = _shared(visible)
        self._peer_count, self._part = len(shared.peers), shared.part
        if shared.generations == self._generations:
            return False
        words = [word for table in self._packing.table_of.tolist() for word in shared.peer_words(table)]
        self._host_peers.numpy().view(np.int64)[: len(words)] = words
        self._device.copy(self._peers, self._host_peers, stream)
        self._generations = shared.generations
        return True

    def words(self, number: int) -> tuple[int, int]:
        """Returns the words 11 and 12 of a feature, by its number among all of them (cuda/lookup.cuh). Call `bind`
        first.
        """
        count = self._peer_count
        if count == 0:
            return 0, 0
        return self._peers.data_ptr() + 8 * PEER_WORDS * count * number, count | self._part << 32

    def launched(self, call: KernelCall) -> KernelCall:
        """Returns the lookup to launch in place of one that looks on this GPU alone."""
        return across(call, self._peers)

    def tell(self, packed: PackedIds, host: np.ndarray, missed: np.ndarray, wanted: Sequence[tuple[int, Ids]]) -> None:
        """Reports a lookup in place of `HbmTier.tell`. host: the bytes of the packed batch."""
        self._sharing.tell(self._tier, packed.lookups, missed, wanted, self._sampled(packed, host))

    def _sampled(self, packed: PackedIds, host: np.ndarray) -> list[tuple[int, Ids]]:
        """Returns by table, on average, one id in SAMPLED_IDS of one batch in SAMPLED_BATCHES."""
        if self._chance.random() * SAMPLED_BATCHES >= 1:
            return []
        words = host[: host.nbytes // 8 * 8].view(np.int64)
        # The first id differs in each feature and batch, so that no place in a bag always counts or never does.
        firsts = self._chance.integers(0, SAMPLED_IDS, len(packed.id_counts)).tolist()
        begins, counts = packed.ids_at.tolist(), packed.id_counts.tolist()
        tables = self._packing.table_of.tolist()
        return [
            (table, words[begin + first : begin + count : SAMPLED_IDS].copy())
            for table, begin, count, first in zip(tables, begins, counts, firsts, strict=True)
            if first < count
        ]


def _shared(visible: VisibleSnapshot) -> SharedVisibleSnapshot:
    assert isinstance(visible, SharedVisibleSnapshot)
    return visible
