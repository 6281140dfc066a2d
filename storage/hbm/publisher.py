"""Brings the changes of a cache's index to the GPU, set by set, in the order of cuda/publish.cuh.

    1 rows      into slots that no lookup can hold
      grace     if 2 names any of them
    2 emptied   words that lose their owner, or whose owner's row lies elsewhere now
      grace
    3 ids       of new owners
      grace
    4 words     of new owners

A grace period: what was launched is complete, then every session that was inside has come out.

Lists and rows go through the halves of a pinned buffer in turn, in pieces where they are larger: one is filled while
the GPU reads the other. Rows may also be put into `space`, where the GPU reads them itself. Not thread-safe.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from storage._table import GpuSet
from storage.errors import DeviceError
from storage.hbm import lookup_kernels
from storage.hbm.device import Device, KernelCall
from storage.hbm.readers import Turns
from storage.hbm.replica import GpuSlab
from storage.hbm.threads import usable_threads

if TYPE_CHECKING:
    import torch

_COUNT_BYTES = 16
_ENTRY_BYTES = 16
# The most bytes of the buffer, or a sixteenth of a small cache: a half delays a session's copy on the bus by less than
# a tenth of a millisecond.
_MOST_STAGING = 8 << 20
_LEAST_STAGING = 1 << 18
_LEAST_ENTRIES = 1024
# The most bytes of pinned memory that rows of a set are put into, from which the GPU fetches them.
_MOST_SPACE = 16 << 20
_ALIGNMENT = 256


class _Half:
    """One half of the buffer, on host and device.

    `done` is recorded after its last use; `pending` is true until that was waited for.
    """

    def __init__(self, device: Device, host: torch.Tensor, staging: torch.Tensor) -> None:
        self.host, self.staging = host, staging
        self.bytes = host.numpy()
        self.done = device.new_event()
        self.pending = False


class Publisher:
    """Publishes changes to one GPU. `rows` and `entries` count those that it has written there."""

    def __init__(self, device: Device, turns: Turns, widest_stride: int, cache_bytes: int) -> None:
        """Allocates the buffers.

        widest_stride: the widest of all slabs. cache_bytes: bytes of the slabs. Raises DeviceError.
        """
        self.rows = 0
        self.entries = 0
        self._device = device
        self._turns = turns
        wanted = min(_MOST_STAGING, max(_LEAST_STAGING, cache_bytes // 16))
        least = _COUNT_BYTES + _LEAST_ENTRIES * (_ENTRY_BYTES + widest_stride)
        half = -(-max(wanted // 2, least) // _ALIGNMENT) * _ALIGNMENT
        size = 2 * half
        device.enter_thread()
        self._stream = device.new_stream("publish")
        self._done = device.new_event()
        self._host = device.pinned(size)
        self._host_bytes = self._host.numpy()
        self._staging = device.device(size)
        self._space = device.pinned(max(widest_stride, min(_MOST_SPACE, max(_LEAST_STAGING, cache_bytes // 16))))
        self._space_bytes = self._space.numpy()
        self._halves = [
            _Half(device, self._host[start : start + half], self._staging[start : start + half]) for start in (0, half)
        ]
        self._threads = usable_threads()

    def publish(self, slab: GpuSlab) -> None:
        """Brings the changes since the last call to the GPU, and waits until every lookup sees them.

        Raises DeviceError: the GPU must not be asked any more then.
        """
        changes = slab.cache.take_set(self._threads)
        if len(changes.emptied) + len(changes.ids) + len(changes.words) == 0:
            slab.cache.complete_set()
            return
        self._put_rows(slab, changes)
        if len(changes.rows) and len(changes.emptied):
            self._grace()
        self._put_stores(slab, changes.emptied)
        self._grace()
        self._put_stores(slab, changes.ids)
        if len(changes.ids):
            self._grace()
        self._put_stores(slab, changes.words)
        self._finish()
        slab.cache.complete_set()

    def space(self, slab: GpuSlab) -> np.ndarray:
        """Returns a buffer (n, stride) for rows of a set, which the host need not copy again to bring them to the GPU.

        The buffer may be used until the set is published. All slabs share its memory.
        """
        rows = len(self._space_bytes) // slab.stride
        return self._space_bytes[: rows * slab.stride].reshape(rows, slab.stride)

    def read(self, source: torch.Tensor, zero_after: torch.Tensor | None = None) -> np.ndarray:
        """Reads bytes of the GPU, at most the buffer's; the array is valid until the next call.

        zero_after: filled with zeros after the read.
        """
        target = self._host[: source.nbytes]
        self._device.copy(target, source, self._stream)
        if zero_after is not None:
            self._device.zero(zero_after, self._stream)
        self._wait()
        return self._host_bytes[: source.nbytes]

    @property
    def buffer_bytes(self) -> int:
        """The most bytes that `read` takes at once."""
        return len(self._host_bytes)

    def drain(self) -> None:
        """Waits for the stream; a lost GPU has nothing to wait for."""
        with contextlib.suppress(DeviceError):
            self._device.enter_thread()
            self._wait()

    def close(self) -> None:
        """Frees the memory; no method may be called any more."""
        self.drain()
        del self._halves, self._space, self._space_bytes, self._host_bytes, self._host, self._staging

    def _put_rows(self, slab: GpuSlab, changes: GpuSet) -> None:
        count = len(changes.rows)
        most = (len(self._halves[0].bytes) - _COUNT_BYTES) // (_ENTRY_BYTES + slab.stride)
        space = self._space_of(changes, slab)
        for start in range(0, count, most):
            n = min(most, count - start)
            half = self._free_half()
            lists = _COUNT_BYTES + n * _ENTRY_BYTES
            end = lists + n * slab.stride
            words = half.bytes[:lists].view(np.int64)
            words[0] = n
            entries = words[2:].reshape(n, 2)
            if space is None:
                staged = half.bytes[lists:end].reshape(n, slab.stride)
                changes.put_rows(start, entries, staged, self._threads)
                self._send(half, end)
            else:
                entries[:] = changes.rows[start : start + n]
                entries[:, 1] -= start
                self._send(half, lists)
                rows = space[start * slab.stride : (start + n) * slab.stride]
                self._device.copy(half.staging[lists:end], rows, self._stream)
            self._launch(
                half,
                lookup_kernels.publish_rows(
                    entries=half.staging[_COUNT_BYTES:lists],
                    count=half.staging[:8],
                    room=n,
                    staging=half.staging[lists:end],
                    staged=n,
                    slab=slab.rows,
                    slots=slab.cache.slots,
                    stride=slab.stride,
                ),
            )
        self.rows += count

    def _put_stores(self, slab: GpuSlab, entries: np.ndarray) -> None:
        most = (len(self._halves[0].bytes) - _COUNT_BYTES) // _ENTRY_BYTES
        for start in range(0, len(entries), most):
            piece = entries[start : start + most]
            half = self._free_half()
            end = _COUNT_BYTES + piece.nbytes
            words = half.bytes[:end].view(np.int64)
            words[0] = len(piece)
            words[2:] = piece.reshape(-1)
            self._send(half, end)
            self._launch(
                half,
                lookup_kernels.publish_stores(
                    entries=half.staging[_COUNT_BYTES:end],
                    count=half.staging[:8],
                    room=len(piece),
                    buckets=slab.buckets,
                    bucket_count=slab.cache.bucket_count,
                ),
            )
        self.entries += len(entries)

    def _free_half(self) -> _Half:
        """Returns the half that was filled longer ago, when the GPU has read it."""
        half = self._halves[0]
        self._halves.reverse()
        self._await(half)
        return half

    def _space_of(self, changes: GpuSet, slab: GpuSlab) -> torch.Tensor | None:
        """Returns the set's rows, by number, when they are in `space`; None otherwise."""
        if len(changes.rows) == 0 or changes.staged.strides[0] != slab.stride:
            return None
        start = changes.staged.ctypes.data - self._space_bytes.ctypes.data
        return self._space[start:] if 0 <= start < len(self._space_bytes) else None

    def _send(self, half: _Half, size: int) -> None:
        self._device.copy(half.staging[:size], half.host[:size], self._stream)

    def _launch(self, half: _Half, call: KernelCall) -> None:
        self._device.kernel(call, self._stream)
        self._device.record(half.done, self._stream)
        half.pending = True

    def _await(self, half: _Half) -> None:
        if half.pending:
            self._device.synchronize(half.done)
            half.pending = False

    def _grace(self) -> None:
        """Waits until no lookup is under way that was launched before what is on the stream was complete."""
        self._finish()
        self._turns.wait()

    def _finish(self) -> None:
        """Waits until the GPU has done all its work."""
        for half in self._halves:
            self._await(half)

    def _wait(self) -> None:
        self._device.record(self._done, self._stream)
        self._device.synchronize(self._done)
