"""Brings the changes of a cache's index to the card, set by set, in the order of cuda/publish.cuh.

    1 rows      into slots that no lookup can hold
    2 emptied   words that lose their owner, or whose owner's row lies elsewhere now
      grace     2 is complete, then every lane that was inside has come out
    3 ids       of new owners
    4 words     of new owners

Lists and rows go through one pinned buffer, in pieces where they are larger. One thread at a time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from storage import lookup_kernels
from storage._table import CardSet
from storage.errors import DeviceError
from storage.hbm.device import Device
from storage.hbm.readers import Turns
from storage.hbm.replica import CardSlab

if TYPE_CHECKING:
    import torch

_COUNT_BYTES = 16
_ENTRY_BYTES = 16
# Of the buffer: what keeps the bus from a lane's copy for less than a tenth of a millisecond, or a sixteenth of a
# small cache.
_MOST_STAGING = 4 << 20
_LEAST_STAGING = 1 << 18
_LEAST_ENTRIES = 1024


class Publisher:
    """Of one card. rows, entries: that it has put there."""

    def __init__(self, device: Device, turns: Turns, widest_stride: int, cache_bytes: int) -> None:
        """widest_stride: of all slabs. cache_bytes: what they take. Raises DeviceError."""
        self.rows = 0
        self.entries = 0
        self._device = device
        self._turns = turns
        wanted = min(_MOST_STAGING, max(_LEAST_STAGING, cache_bytes // 16))
        size = max(wanted, _COUNT_BYTES + _LEAST_ENTRIES * (_ENTRY_BYTES + widest_stride))
        device.enter_thread()
        self._stream = device.new_stream("publish")
        self._done = device.new_event()
        self._host = device.pinned(size)
        self._host_bytes = self._host.numpy()
        self._staging = device.device(size)

    def publish(self, slab: CardSlab) -> None:
        """Takes what changed since the last time, brings it to the card, and waits until every lookup sees it.

        Raises DeviceError: the card must not be asked any more then.
        """
        changes = slab.cache.take_set()
        if len(changes.emptied) + len(changes.ids) + len(changes.words) == 0:
            slab.cache.complete_set()
            return
        self._put_rows(slab, changes)
        self._put_stores(slab, changes.emptied)
        self._turns.wait()
        self._put_stores(slab, changes.ids)
        self._put_stores(slab, changes.words)
        slab.cache.complete_set()

    def read(self, source: torch.Tensor, zero_after: torch.Tensor | None = None) -> np.ndarray:
        """Bytes of the card, at most the buffer's; the array holds until the next call. zero_after: cleared then."""
        target = self._host[: source.nbytes]
        self._device.copy(target, source, self._stream)
        if zero_after is not None:
            self._device.zero(zero_after, self._stream)
        self._wait()
        return self._host_bytes[: source.nbytes]

    @property
    def buffer_bytes(self) -> int:
        """The most that `read` takes at once."""
        return len(self._host_bytes)

    def drain(self) -> None:
        """Waits for the stream; a card that is lost has nothing to wait for."""
        with contextlib.suppress(DeviceError):
            self._device.enter_thread()
            self._wait()

    def close(self) -> None:
        """Gives the memory back; nothing may be asked any more."""
        self.drain()
        del self._host_bytes, self._host, self._staging

    def _put_rows(self, slab: CardSlab, changes: CardSet) -> None:
        count = len(changes.rows)
        most = (len(self._host_bytes) - _COUNT_BYTES) // (_ENTRY_BYTES + slab.stride)
        for start in range(0, count, most):
            entries = changes.rows[start : start + most].copy()
            n = len(entries)
            numbers = entries[:, 1].copy()
            entries[:, 1] = np.arange(n)
            lists = _COUNT_BYTES + n * _ENTRY_BYTES
            self._fill_list(entries)
            staged = self._host_bytes[lists : lists + n * slab.stride].reshape(n, slab.stride)
            staged[:, : slab.row_bytes] = changes.staged[numbers]
            staged[:, slab.row_bytes :] = 0
            self._send(lists + n * slab.stride)
            self._device.kernel(
                lookup_kernels.publish_rows(
                    entries=self._staging[_COUNT_BYTES:lists],
                    count=self._staging[:8],
                    room=n,
                    staging=self._staging[lists : lists + n * slab.stride],
                    staged=n,
                    slab=slab.rows,
                    slots=slab.cache.slots,
                    stride=slab.stride,
                ),
                self._stream,
            )
            self._wait()
        self.rows += count

    def _put_stores(self, slab: CardSlab, entries: np.ndarray) -> None:
        most = (len(self._host_bytes) - _COUNT_BYTES) // _ENTRY_BYTES
        for start in range(0, len(entries), most):
            piece = entries[start : start + most]
            end = _COUNT_BYTES + len(piece) * _ENTRY_BYTES
            self._fill_list(piece)
            self._send(end)
            self._device.kernel(
                lookup_kernels.publish_stores(
                    entries=self._staging[_COUNT_BYTES:end],
                    count=self._staging[:8],
                    room=len(piece),
                    lines=slab.lines,
                    line_count=slab.cache.line_count,
                ),
                self._stream,
            )
            self._wait()
        self.entries += len(entries)

    def _fill_list(self, entries: np.ndarray) -> None:
        words = self._host_bytes[: _COUNT_BYTES + entries.nbytes].view(np.int64)
        words[0] = len(entries)
        words[2:] = entries.reshape(-1)

    def _send(self, size: int) -> None:
        self._device.copy(self._staging[:size], self._host[:size], self._stream)

    def _wait(self) -> None:
        self._device.record(self._done, self._stream)
        self._device.synchronize(self._done)
