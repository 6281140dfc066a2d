"""Memory of a simulated GPU: numpy arrays that torch tensors borrow. Only the tensors keep them.

So an array is freed with the last tensor over it, and the driver, which holds a weak reference to it, is notified then.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from weakref import ref

import numpy as np
import torch

from tests.simulated_gpu.host_view import HostView
from tests.simulated_gpu.mistakes import LifetimeError
from tests.simulated_gpu.ordering import History

ALIGNMENT = 256
PINNED, DEVICE = "pinned", "device"


class Buffer:
    """One allocation. kind: PINNED or DEVICE. start: its address. host_view: the host's view of a pinned one."""

    def __init__(self, kind: str, number: int, array: np.ndarray, freed: deque[int]) -> None:
        """freed: `start` is appended when the memory is freed, on any thread, so nothing else happens then."""
        self.kind = kind
        self.number = number
        self.size = array.size
        self.start = start = _address(array)
        self.history = History()
        # Accesses with a protocol of their own: they are not checked for races, only for uses that are incomplete.
        self.uses = History()
        self.host_view = HostView(str(self)) if kind == PINNED else None
        self._array = ref(array, lambda _: freed.append(start))

    def __str__(self) -> str:
        return f"{self.kind} buffer {self.number}"

    @property
    def is_alive(self) -> bool:
        """Returns whether a tensor still uses the memory."""
        return self._array() is not None

    def peek(self) -> np.ndarray | None:
        """Returns the bytes, None when the buffer has been dropped."""
        return self._array()

    def array(self) -> np.ndarray:
        """Returns the bytes. Raises LifetimeError when the buffer has been dropped."""
        array = self._array()
        if array is None:
            raise LifetimeError(f"{self} of {self.size} bytes has been dropped, and the device still needs it")
        return array


class Part(NamedTuple):
    """The bytes `begin` to `end` of a buffer."""

    buffer: Buffer
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.buffer}[{self.begin}:{self.end}]"

    def bytes(self) -> np.ndarray:
        """Returns the bytes themselves. Raises LifetimeError."""
        return self.buffer.array()[self.begin : self.end]


class Buffers:
    """All buffers of a driver, by address. The caller holds the driver's lock.

    taken: bytes of those that are alive, by kind.
    """

    def __init__(self) -> None:
        self.taken = {PINNED: 0, DEVICE: 0}
        self._starts: list[int] = []
        self._at: dict[int, Buffer] = {}
        self._freed: deque[int] = deque()
        self._made = 0

    def allocate(self, kind: str, size: int) -> tuple[torch.Tensor, list[Buffer]]:
        """Returns a tensor of zeros that is the only owner of its memory, and the result of `collect`."""
        memory = np.zeros(size + ALIGNMENT, np.uint8)
        offset = -_address(memory) % ALIGNMENT
        array = memory[offset : offset + size]
        # The memory may be that of a buffer that was freed just now.
        gone = self.collect()
        self._made += 1
        buffer = Buffer(kind, self._made, array, self._freed)
        self._at[buffer.start] = buffer
        insort(self._starts, buffer.start)
        self.taken[kind] += size
        return torch.from_numpy(array), gone

    def collect(self) -> list[Buffer]:
        """Returns the buffers that were dropped since the last call."""
        gone: list[Buffer] = []
        while self._freed:
            buffer = self._at.pop(self._freed.popleft())
            self._starts.remove(buffer.start)
            self.taken[buffer.kind] -= buffer.size
            gone.append(buffer)
        return gone

    def find(self, tensor: torch.Tensor) -> Part | None:
        """Finds the part that a tensor covers, from its first byte to its last one; None when it is in no buffer."""
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return None
        if tensor.is_contiguous():
            size = tensor.nbytes
        else:
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            size = (sum((length - 1) * stride for length, stride in steps) + 1) * tensor.element_size()
        return self.at(tensor.data_ptr(), size) if tensor.numel() else None

    def at(self, address: int, size: int) -> Part | None:
        """Finds bytes by their address; None unless all of them belong to one buffer that is alive."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or size < 0:
            return None
        buffer = self._at[self._starts[place]]
        begin = address - buffer.start
        if begin + size > buffer.size or not buffer.is_alive:
            return None
        return Part(buffer, begin, begin + size)

    def peer_at(self, address: int, size: int) -> np.ndarray | None:
        """Finds device memory as `at` does, for a kernel of another GPU, whose caller does not hold this lock."""
        starts = list(self._starts)
        place = bisect_right(starts, address) - 1
        buffer = self._at.get(starts[place]) if place >= 0 else None
        if buffer is None or buffer.kind != DEVICE or address + size > buffer.start + buffer.size:
            return None
        array = buffer.peek()
        return None if array is None else array[address - buffer.start : address - buffer.start + size]

    def living(self) -> list[Buffer]:
        """Returns the buffers that are alive, in the order of their addresses."""
        return [self._at[start] for start in self._starts if self._at[start].is_alive]


def without(parts: Sequence[Part], others: Sequence[Part]) -> list[Part]:
    """Returns the pieces of the parts that lie in none of the others."""
    left = list(parts)
    for other in others:
        pieces: list[Part] = []
        for part in left:
            if part.buffer is not other.buffer or part.end <= other.begin or other.end <= part.begin:
                pieces.append(part)
                continue
            if part.begin < other.begin:
                pieces.append(Part(part.buffer, part.begin, other.begin))
            if other.end < part.end:
                pieces.append(Part(part.buffer, other.end, part.end))
        left = pieces
    return left


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
