"""Looks up one pooled feature over a store with a GPU: hits on the GPU, misses, and missed rows that are added.

It works as a session does, without anything dense: one copy in, one launch, one copy out; only a batch with misses
asks the host and launches once more. B bags of L ids each, D dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.device import WatchedDriver
from storage.features import Jagged
from storage.hbm import lookup_kernels
from storage.hbm.lookup_kernels import CHAIN_LENGTH_WORD, CHAIN_WORD, FEATURE_WORDS, PACKED_FEATURE_WORD, header_words
from storage.hbm.replica import Replica
from storage.hbm.tier import HbmTier
from storage.hbm.visibility import VisibleSnapshot
from storage.specs import LookupSpec
from storage.tiers.tiered import TieredStore

Array = NDArray[np.int64]

# When more than one id in this many is missed, the host computes the whole batch.
MISSES_ONE_IN = 4
_COUNT_BYTES = 16
_ADD_WORDS = 4
_ALIGNMENT = 128
_ID_MASK = (1 << lookup_kernels.FEATURE_SHIFT) - 1


@dataclass(frozen=True)
class Answer:
    """The answer to a batch."""

    #: Ids that the GPU did not have.
    misses: int
    #: The host computed the batch.
    from_host: bool


class TierSession:
    """Looks up table 0. Not thread-safe: one thread uses it at a time. Allocates everything in the constructor."""

    def __init__(self, driver: WatchedDriver, store: TieredStore, tier: HbmTier, bags: int, length: int) -> None:
        """Raises DeviceError."""
        self.bags, self.length, self.ids = bags, length, bags * length
        self._driver, self._tier = driver, tier
        self._reader = tier.reader()
        spec = store.tables[0]
        self._dim = spec.dim
        self._pooled = store.plan([LookupSpec("bags", spec.name, "sum")])
        self._single = store.plan([LookupSpec("late", spec.name, "none", 1)])
        self._offsets = np.arange(0, self.ids + 1, length, dtype=np.int64)
        self._room = max(1, self.ids // MISSES_ONE_IN)
        self._tables = len(store.tables)
        driver.enter_thread()
        self.stream = driver.new_stream("lookups")
        self._done = driver.new_event(busy_wait=True)
        self._ids_at = -(-8 * header_words(1) // _ALIGNMENT) * _ALIGNMENT
        self._ranges_at = self._ids_at + 8 * self.ids
        self._packed, self._host_packed = self._both(self._ranges_at + 8 * bags)
        self._features, self._host_features = self._both(8 * FEATURE_WORDS)
        self._found, self._host_found = self._both(_COUNT_BYTES + 16 * self._room)
        self._output, self._host_output = self._both(4 * bags * spec.dim)
        self._entries, self._host_entries = self._both(_COUNT_BYTES + 8 * _ADD_WORDS * min(bags, self._room))
        self._late, self._host_missed = self._both(4 * self._room * spec.dim)
        self._generation = 0
        self._batch = 0
        # Ranges are the same in every batch.
        self._host_packed.numpy()[: self._ranges_at] = 0
        ranges = self._host_packed.numpy()[self._ranges_at :].view(np.int32).reshape(bags, 2)
        ranges[:, 0], ranges[:, 1] = self._offsets[:-1], self._offsets[1:]

    @property
    def sums(self) -> NDArray[np.float32]:
        """The sums of the last batch (B, D); the next batch overwrites them."""
        return self._host_output.numpy().view(np.float32).reshape(self.bags, self._dim)

    def run(self, ids: Array, mask: int = 0) -> Answer:
        """Looks up a batch; returns when the sums are complete.

        ids: (B * L,). Raises DeviceError, StoreError.
        """
        visible = self._reader.enter(mask)
        if visible is None:
            return self._on_host(ids, mask)
        try:
            misses = self._on_gpu(visible, ids)
        finally:
            self._reader.leave()
        if misses > self._room:
            self._tell(misses, [])
            return self._on_host(ids, mask)
        if misses:
            late = self._missed(misses)
            wanted = ids[late]
            self._add_late(wanted, late, mask)
            self._tell(misses, [(0, wanted)])
        else:
            self._tell(0, [])
        return Answer(misses, False)

    def enter_thread(self) -> None:
        """Makes the calling thread the one that drives this session."""
        self._driver.enter_thread()

    def close(self) -> None:
        """Waits for the stream."""
        self._driver.enter_thread()
        self._wait()

    def _on_gpu(self, visible: VisibleSnapshot, ids: Array) -> int:
        """Looks the batch up on the GPU; returns how many ids were missed."""
        driver, stream = self._driver, self.stream
        if visible.replica.generation != self._generation:
            self._write_feature(visible.replica)
        self._batch += 1
        words = self._host_packed.numpy()[: self._ids_at].view(np.int64)
        words[0], words[1] = self._batch, self.bags
        words[CHAIN_LENGTH_WORD] = len(visible.chain)
        words[CHAIN_WORD : CHAIN_WORD + len(visible.chain)] = visible.chain
        words[PACKED_FEATURE_WORD : PACKED_FEATURE_WORD + 4] = (self._ids_at, self.ids, self._ranges_at, 0)
        self._host_packed.numpy()[self._ids_at : self._ranges_at].view(np.int64)[:] = ids
        driver.copy(self._packed, self._host_packed, stream)
        driver.zero(self._found[:_COUNT_BYTES], stream)
        driver.kernel(
            lookup_kernels.pool(
                row_type=visible.replica.tables[0].row_type,
                features=self._features,
                feature_count=1,
                header=self._packed,
                rows=self.bags,
                misses=self._found[_COUNT_BYTES:],
                miss_count=self._found[:8],
                miss_room=self._room,
                use_every=visible.replica.use_every,
                outputs=(self._output,),
                shared=visible.replica.shared,
            ),
            stream,
        )
        driver.copy(self._host_found[:_COUNT_BYTES], self._found[:_COUNT_BYTES], stream)
        driver.copy(self._host_output, self._output, stream)
        self._wait()
        return int(self._host_found.numpy()[:8].view(np.int64)[0])

    def _missed(self, misses: int) -> Array:
        """Returns (misses,) places of ids in the batch, ascending."""
        end = _COUNT_BYTES + 16 * misses
        self._driver.copy(self._host_found[_COUNT_BYTES:end], self._found[_COUNT_BYTES:end], self.stream)
        self._wait()
        entries = self._host_found.numpy()[_COUNT_BYTES:end].view(np.int64)
        return np.sort(entries[::2] & _ID_MASK)

    def _add_late(self, wanted: Array, late: Array, mask: int) -> None:
        """Copies the rows of the ids at the places `late` to the GPU, and adds them to their bags."""
        driver, stream = self._driver, self.stream
        # In the order of the batch, straight to where the GPU fetches them: few occur twice.
        offsets = np.arange(len(late) + 1, dtype=np.int64)
        staged = self._host_missed[: 4 * len(late) * self._dim]
        into = staged.numpy().view(np.float32).reshape(len(late), 1, self._dim)
        arrays = self._single.arrays(len(late), [into])
        self._single.lookup(len(late), [Jagged(wanted, offsets)], None, mask, arrays)
        bags, first, count = np.unique(late // self.length, return_index=True, return_counts=True)
        size = _COUNT_BYTES + 8 * _ADD_WORDS * len(bags)
        words = self._host_entries.numpy()[:size].view(np.int64)
        words[0] = len(bags)
        entries = words[2:].reshape(len(bags), _ADD_WORDS)
        entries[:, 0], entries[:, 1], entries[:, 2], entries[:, 3] = bags, first * self._dim, count, 0
        driver.copy(self._late[: staged.nbytes], staged, stream)
        driver.copy(self._entries[:size], self._host_entries[:size], stream)
        driver.kernel(
            lookup_kernels.add_missed(
                features=self._features,
                header=self._packed,
                rows=self.bags,
                entries=self._entries[_COUNT_BYTES:],
                count=self._entries[:8],
                room=len(bags),
                staging=self._late,
                weights=None,
                outputs=(self._output,),
            ),
            stream,
        )
        driver.copy(self._host_output, self._output, stream)
        self._wait()

    def _on_host(self, ids: Array, mask: int) -> Answer:
        arrays = self._pooled.arrays(self.bags, [self.sums])
        self._pooled.lookup(self.bags, [Jagged(ids, self._offsets)], None, mask, arrays)
        return Answer(self.ids, True)

    def _tell(self, misses: int, wanted: list[tuple[int, Array]]) -> None:
        counts = np.zeros((2, self._tables), np.uint64)
        counts[0, 0], counts[1, 0] = self.ids, misses
        self._tier.tell(counts[0], counts[1], wanted)

    def _write_feature(self, replica: Replica) -> None:
        words = [*replica.words(0), replica.base_tables, self.ids, 0, 0, 0, self._output.data_ptr(), 0]
        self._host_features.numpy().view(np.int64)[:] = words
        self._driver.copy(self._features, self._host_features, self.stream)
        self._wait()
        self._generation = replica.generation

    def _both(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._driver.device(size), self._driver.pinned(size)

    def _wait(self) -> None:
        self._driver.record(self._done, self.stream)
        self._driver.synchronize(self._done)
