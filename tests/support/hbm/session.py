"""A test session that looks up on a GPU and returns what it found: kernels, a stream, buffers, nothing of a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from storage.features import Jagged
from storage.hbm import lookup_kernels
from storage.hbm.device import Device
from storage.hbm.lookup_kernels import (
    CHAIN_LENGTH_WORD,
    CHAIN_WORD,
    FEATURE_WORDS,
    PACKED_FEATURE_WORD,
)
from storage.hbm.sharing import (
    MOST_GPUS,
    PEER_CHAIN_WORDS,
    PEER_CHAINS_WORD,
    PEER_WORDS,
    SharedReader,
    SharedVisibleSnapshot,
    across,
)
from storage.hbm.tier import HbmTier
from storage.hbm.visibility import Reader, VisibleSnapshot
from storage.specs import POOLINGS, LookupSpec

# Before the packed batch: the feature, then what other GPUs have of its table. In it: the header, then their chains.
_WORDS_BYTES = 8 * FEATURE_WORDS
_FIRST_BYTES = _WORDS_BYTES + 8 * PEER_WORDS * MOST_GPUS
_HEADER_BYTES = 8 * 64
_IDS_AT = _HEADER_BYTES + 8 * PEER_CHAIN_WORDS * MOST_GPUS


@dataclass
class GpuAnswer:
    """The result of one feature's lookup."""

    #: float32 (B, dim)
    rows: np.ndarray
    #: (m,) numbers of the ids that the GPU did not have
    missed: np.ndarray


class GpuLookupSession:
    """Looks up one feature at a time. Not thread-safe: one thread uses it at a time.

    Every id of a feature is in one bag a row; unpooled features have one id a row. inside: called when the session is
    inside, before anything of the lookup is on the stream.
    """

    def __init__(
        self,
        device: Device,
        tier: HbmTier,
        tables: Sequence[str],
        rows: int,
        ids: int,
        reader: SharedReader | None = None,
    ) -> None:
        """tables: names, by index. rows, ids: of the largest batch. reader: for one that looks on other GPUs too."""
        self.tier = tier
        self.inside: Callable[[], None] = lambda: None
        self._device = device
        self._tables = {name: index for index, name in enumerate(tables)}
        self._reader: Reader | SharedReader = tier.reader() if reader is None else reader
        device.enter_thread()
        self._stream = device.new_stream("session")
        self._done = device.new_event()
        self._rows, self._ids = rows, ids
        size = _FIRST_BYTES + _IDS_AT + 8 * ids + 8 * rows + 4 * ids
        self._host = device.pinned(size)
        self._staging = device.device(size)
        self._misses = device.device(16 * ids)
        self._counts = device.device(16)
        self._host_misses = device.pinned(16 * ids + 16)
        self._output: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def lookup(self, mask: int, batch: int, spec: LookupSpec, bags: Jagged) -> GpuAnswer | None:
        """Looks up a feature; returns None when the GPU cannot answer for this snapshot."""
        visible = self._reader.enter(mask)
        if visible is None:
            return None
        try:
            self.inside()
            return self._lookup(visible, batch, spec, bags)
        finally:
            self._reader.leave()

    def _lookup(self, visible: VisibleSnapshot, batch: int, spec: LookupSpec, bags: Jagged) -> GpuAnswer:
        device, stream = self._device, self._stream
        device.enter_thread()
        replica = visible.replica
        table = self._tables[spec.table]
        dim = replica.tables[table].dim
        output, arrived = self._outputs(dim)
        used = self._pack(visible, table, batch, spec, bags)
        device.copy(self._staging[:used], self._host[:used], stream)
        device.zero(self._counts, stream)
        common = {
            "row_type": replica.tables[table].row_type,
            "features": self._staging[:_WORDS_BYTES],
            "feature_count": 1,
            "header": self._staging[_FIRST_BYTES:],
            "rows": self._rows,
            "misses": self._misses,
            "miss_count": self._counts[:8],
            "miss_room": self._ids,
            "use_every": 1,
            "outputs": (output,),
            "shared": replica.shared,
        }
        if spec.pooling == "none":
            call = lookup_kernels.gather("fp32", longest=self._rows, **common)  # type: ignore[arg-type]
        else:
            call = lookup_kernels.pool(**common)  # type: ignore[arg-type]
        if isinstance(visible, SharedVisibleSnapshot):
            call = across(call, self._staging[_WORDS_BYTES:_FIRST_BYTES])
        device.kernel(call, stream)
        device.copy(arrived, output, stream)
        device.copy(self._host_misses[:16], self._counts, stream)
        device.copy(self._host_misses[16:], self._misses, stream)
        device.record(self._done, stream)
        device.synchronize(self._done)
        words = self._host_misses.numpy().view(np.int64)
        missed = words[2 : 2 + 2 * int(words[0]) : 2] & ((1 << 48) - 1)
        rows = arrived.numpy().view(np.float32).reshape(-1, dim)[:batch].copy()
        return GpuAnswer(rows, np.sort(missed))

    def _outputs(self, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        if dim not in self._output:
            size = self._rows * dim * 4
            self._output[dim] = self._device.device(size), self._device.pinned(size)
        return self._output[dim]

    def _pack(self, visible: VisibleSnapshot, table: int, batch: int, spec: LookupSpec, bags: Jagged) -> int:
        count, replica = len(bags.values), visible.replica
        words = self._host.numpy()[:_FIRST_BYTES].view(np.int64)
        shape = 1 if spec.pooling == "none" else POOLINGS.index(spec.pooling)
        output = self._output[replica.tables[table].dim][0].data_ptr()
        elsewhere, peers, chains = [0, 0], [], []  # type: tuple[list[int], list[int], list[int]]
        if isinstance(visible, SharedVisibleSnapshot) and visible.peers:
            elsewhere = [self._staging.data_ptr() + _WORDS_BYTES, len(visible.peers) | visible.part << 32]
            peers, chains = visible.peer_words(table), visible.peer_chains
        words[:FEATURE_WORDS] = [*replica.words(table), replica.base_tables, self._ids, *elsewhere, shape, output, 0]
        words[FEATURE_WORDS : FEATURE_WORDS + len(peers)] = peers
        block = self._host.numpy()[_FIRST_BYTES:]
        header = block[:_IDS_AT].view(np.int64)
        header[:] = 0
        header[1] = batch
        header[CHAIN_LENGTH_WORD] = len(visible.chain)
        header[CHAIN_WORD : CHAIN_WORD + len(visible.chain)] = visible.chain
        header[PEER_CHAINS_WORD] = _HEADER_BYTES if chains else 0
        header[_HEADER_BYTES // 8 : _HEADER_BYTES // 8 + len(chains)] = chains
        ranges_at = _IDS_AT + 8 * count
        header[PACKED_FEATURE_WORD : PACKED_FEATURE_WORD + 4] = [_IDS_AT, count, ranges_at, 0]
        block[_IDS_AT:ranges_at].view(np.int64)[:] = bags.values
        ranges = block[ranges_at : ranges_at + 8 * batch].view(np.int32).reshape(batch, 2)
        ranges[:, 0], ranges[:, 1] = bags.offsets[:-1], bags.offsets[1:]
        return _FIRST_BYTES + ranges_at + 8 * batch
