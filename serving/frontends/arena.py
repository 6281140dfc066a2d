"""Manages the memory that a front end shares with the engine: blocks that only the front end allocates and frees.

A block holds a request's bytes and has room for its answer. The engine maps the same memory and writes nowhere but into
blocks of requests that it has not answered yet, and into the notice behind them: there it announces changes that front
ends must not miss, before the caller that made them is notified of their success.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from storage.errors import Overloaded, Unsupported

MIN_BLOCK = 4096
NOTICE_BYTES = 8
# The pages of a block this large are returned to the system when it is free.
_GIVE_BACK = 4 << 20
# Neither side can make the memory smaller under the other, which would end it with SIGBUS.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if hasattr(fcntl, "F_SEAL_SHRINK") else 0


def aligned(size: int) -> int:
    """Rounds up to a multiple of 8: an offset where data may begin that is read as 64-bit numbers."""
    return size + -size % 8


class SharedMemory:
    """Maps memory of `size` bytes, including the notice at its end; it is freed when nothing views it any more."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        #: The offset of the notice, which follows the blocks.
        self.blocks = size - NOTICE_BYTES
        self.mapped = mmap.mmap(fd, size)
        #: A uint8 view of the whole memory.
        self.array = np.frombuffer(self.mapped, np.uint8)
        self._notice = self.array[self.blocks :].view(np.int64)

    def announce(self, generation: int) -> None:
        """Announces to the front end that other shared memory regions are registered now. Called by the engine."""
        self._notice[0] = generation

    @property
    def announced(self) -> int:
        """The last generation that the engine announced, 0 for none."""
        return int(self._notice[0])

    @classmethod
    def receive(cls, fd: int, size: int) -> SharedMemory:
        """Maps memory that another process has created, and closes the descriptor.

        Raises Unsupported if its size or seals are not as expected.
        """
        try:
            if os.fstat(fd).st_size != size or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise Unsupported("the memory of the front end is not as it says")
            return cls(fd, size)
        finally:
            os.close(fd)


def create_memory(blocks: int) -> tuple[SharedMemory, int]:
    """Creates memory with this many bytes for blocks; returns it with the descriptor to send, which is closed then.

    Raises Unsupported where the system has none.
    """
    if not hasattr(os, "memfd_create"):
        raise Unsupported("front ends in processes of their own need Linux")
    fd = os.memfd_create("emberline-frontend", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    size = blocks + NOTICE_BYTES
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return SharedMemory(fd, size), fd


class BlockAllocator:
    """Allocates blocks of powers of two, the last ones freed first, so that they are still in the caches.

    Not thread-safe. size: a power of two.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._top = size.bit_length() - 1
        self._bottom = MIN_BLOCK.bit_length() - 1
        self._free: list[list[int]] = [[] for _ in range(self._top + 1)]
        self._free[self._top].append(0)

    def allocate(self, size: int) -> tuple[int, int]:
        """Returns (offset, order) of a block of at least `size` bytes, to be passed to `free`.

        Raises Overloaded when full.
        """
        order = max(self._bottom, (size - 1).bit_length() if size > 1 else 0)
        if order > self._top or not (self._has(order) or self._merge(order)):
            raise Overloaded(f"{self.used} bytes of {self.size} are held by requests already; try later")
        found = order
        while not self._free[found]:
            found += 1
        offset = self._free[found].pop()
        while found > order:
            found -= 1
            self._free[found].append(offset + (1 << found))
        self.used += 1 << order
        return offset, order

    def free(self, offset: int, order: int) -> None:
        """Takes a block back."""
        self.used -= 1 << order
        self._free[order].append(offset)

    def _has(self, order: int) -> bool:
        return any(self._free[order:])

    def _merge(self, wanted: int) -> bool:
        """Joins free neighbours, when no block of the wanted order is free. Returns whether there is one then."""
        for order in range(self._bottom, self._top):
            blocks = set(self._free[order])
            pairs = [offset for offset in blocks if not offset >> order & 1 and offset | 1 << order in blocks]
            if pairs:
                merged = {offset | side for offset in pairs for side in (0, 1 << order)}
                self._free[order] = [offset for offset in self._free[order] if offset not in merged]
                self._free[order + 1] += pairs
        return self._has(wanted)


def give_back(memory: SharedMemory, offset: int, order: int) -> None:
    """Returns the pages of a large free block to the system."""
    if 1 << order >= _GIVE_BACK and hasattr(mmap, "MADV_REMOVE"):
        memory.mapped.madvise(mmap.MADV_REMOVE, offset, 1 << order)
