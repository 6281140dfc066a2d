"""Keeps dense weights on a GPU in a few slots at fixed addresses: a captured graph keeps its inputs' addresses.

The graphs of a session are captured once for every weight slot. New weights are copied into a free slot, beside what is
served; a batch then takes the graphs of the slot that holds its snapshot's weights. So nothing is captured again, and
no batch waits for another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from weakref import ref

import torch

from serving.gpu.driver import Driver
from serving.gpu.staging import aligned
from storage.checkpoint import DenseGraph
from storage.errors import DeviceError

# Slots for the served snapshot, a canary, and the next one.
WEIGHT_SLOTS = 3
_WEIGHT_ALIGN = 256
# A batch lasts milliseconds; a longer wait for a slot would last forever.
_WAIT_S = 30.0


class WeightLayout:
    """Layout of a program's weight arguments in a slot."""

    def __init__(self, graph: DenseGraph) -> None:
        self._entries: list[tuple[int, torch.dtype, torch.Size, int]] = []
        at = 0
        for slot, value in graph.weight_arguments().items():
            self._entries.append((slot, value.dtype, value.shape, at))
            at += aligned(value.nbytes, _WEIGHT_ALIGN)
        #: Size of a slot.
        self.bytes = max(at, _WEIGHT_ALIGN)

    def tensors(self, buffer: torch.Tensor) -> dict[int, torch.Tensor]:
        """Returns the weights in a buffer, by the program's argument."""
        return {
            slot: buffer[at : at + prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for slot, dtype, shape, at in self._entries
        }


class WeightSlot:
    """One set of weights."""

    def __init__(self, number: int, driver: Driver, layout: WeightLayout) -> None:
        #: Number of the slot.
        self.number = number
        self.buffer = driver.device(layout.bytes)
        #: The weights by the program's argument.
        self.tensors = layout.tensors(self.buffer)
        #: Event that is set when the weights have arrived.
        self.ready = driver.new_event()
        self.pins = 0
        self.used_at = 0
        self.is_loading = False
        self._holds: ref[DenseGraph] | None = None

    def holds(self, graph: DenseGraph) -> bool:
        """Returns whether these are the weights of a graph."""
        return self._holds is not None and self._holds() is graph

    def take(self, graph: DenseGraph | None) -> None:
        """Assigns the slot to a graph."""
        self._holds = None if graph is None else ref(graph)


class WeightSlots:
    """The weight slots of one model on one GPU. Thread-safe."""

    def __init__(self, driver: Driver, graph: DenseGraph, count: int = WEIGHT_SLOTS) -> None:
        """Allocates the slots. graph: has the layout of all weights. Raises DeviceOutOfMemory."""
        self.layout = WeightLayout(graph)
        #: How many times weights were copied.
        self.uploads = 0
        self._driver = driver
        self._stream = driver.new_stream("weights")
        self._host = driver.pinned(self.layout.bytes)
        self._host_tensors = self.layout.tensors(self._host)
        self._staged = driver.new_event()
        self._uploading = threading.Lock()
        self._changed = threading.Condition()
        self._clock = 0
        self.all = [WeightSlot(number, driver, self.layout) for number in range(count)]

    def close(self) -> None:
        """Frees the memory. No slot is in use any more."""
        if self.uploads:
            with suppress(DeviceError):
                self._driver.enter_thread()
                self._driver.synchronize(self._staged)
        self.all = []
        self._host_tensors = {}
        self._host = self._host[:0].clone()

    @contextmanager
    def pinned(self, graph: DenseGraph) -> Iterator[WeightSlot]:
        """Holds the slot with a graph's weights for the block."""
        weight_slot = self.acquire(graph)
        try:
            yield weight_slot
        finally:
            self.release(weight_slot)

    def release(self, weight_slot: WeightSlot) -> None:
        """Releases a slot when nothing on the device reads it any more."""
        with self._changed:
            weight_slot.pins -= 1
            if not weight_slot.pins:
                self._changed.notify_all()

    def acquire(self, graph: DenseGraph) -> WeightSlot:
        """Returns the slot with a graph's weights, which stay there until `release`.

        Streams wait for its `ready` before they read. Raises DeviceError.
        """
        deadline = time.monotonic() + _WAIT_S
        with self._changed:
            while True:
                self._clock += 1
                weight_slot = next((each for each in self.all if each.holds(graph)), None)
                if weight_slot is not None and not weight_slot.is_loading:
                    weight_slot.pins += 1
                    weight_slot.used_at = self._clock
                    return weight_slot
                if weight_slot is None:
                    free = [each for each in self.all if each.pins == 0 and not each.is_loading]
                    if free:
                        weight_slot = min(free, key=lambda each: each.used_at)
                        weight_slot.take(graph)
                        weight_slot.is_loading = True
                        weight_slot.used_at = self._clock
                        break
                if not self._changed.wait(deadline - time.monotonic()):
                    raise DeviceError(f"{self._driver.info}: all {len(self.all)} weight slots of weights are in use")
        try:
            self._upload(weight_slot, graph)
        except BaseException:
            with self._changed:
                weight_slot.take(None)
                weight_slot.is_loading = False
                self._changed.notify_all()
            raise
        with self._changed:
            weight_slot.is_loading = False
            weight_slot.pins += 1
            self._changed.notify_all()
        return weight_slot

    def _upload(self, weight_slot: WeightSlot, graph: DenseGraph) -> None:
        driver = self._driver
        with self._uploading:
            if self.uploads:
                driver.synchronize(self._staged)  # what lies in the staging buffer has left it
            for slot, value in graph.weight_arguments().items():
                self._host_tensors[slot].copy_(value)
            driver.copy(weight_slot.buffer, self._host, self._stream)
            driver.record(weight_slot.ready, self._stream)
            driver.record(self._staged, self._stream)
            self.uploads += 1
