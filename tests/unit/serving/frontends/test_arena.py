"""Blocks of shared memory: nobody gets another's bytes, nothing is lost, and the memory stays as large as it is."""

from __future__ import annotations

import mmap
import os
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.frontends.arena import (
    MIN_BLOCK,
    NOTICE_BYTES,
    BlockAllocator,
    SharedMemory,
    aligned,
    create_memory,
    give_back,
)
from storage.errors import Overloaded, Unsupported
from tests.support.examples import examples

SIZE = 64 * MIN_BLOCK

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="memory that is sealed is Linux's")


class Blocks(RuleBasedStateMachine):
    """An allocator, and the blocks that it gave out."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(SIZE)
        self.held: list[tuple[int, int]] = []

    @rule(size=st.integers(0, SIZE // 4) | st.sampled_from([1, MIN_BLOCK, MIN_BLOCK + 1, SIZE // 2, SIZE, SIZE + 1]))
    def allocate(self, size: int) -> None:
        try:
            offset, order = self.allocator.allocate(size)
        except Overloaded:
            needed = max(MIN_BLOCK, 1 << (size - 1).bit_length())
            taken = {at for start, power in self.held for at in range(start, start + (1 << power), MIN_BLOCK)}
            free = [
                start
                for start in range(0, SIZE, needed)
                if not any(at in taken for at in range(start, start + needed, MIN_BLOCK))
            ]
            assert needed > SIZE or not free, "there was a block of that size"
            return
        assert 1 << order >= max(size, MIN_BLOCK)
        assert offset % (1 << order) == 0
        assert offset + (1 << order) <= SIZE
        for start, power in self.held:
            assert offset + (1 << order) <= start or start + (1 << power) <= offset
        self.held.append((offset, order))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        block = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.allocator.free(*block)

    @rule()
    def free_all_and_take_the_whole(self) -> None:
        while self.held:
            self.allocator.free(*self.held.pop())
        whole = self.allocator.allocate(SIZE)
        assert whole[0] == 0
        with pytest.raises(Overloaded, match=f"{SIZE} bytes of {SIZE} are held"):
            self.allocator.allocate(1)
        self.allocator.free(*whole)

    @invariant()
    def what_is_used_is_what_is_held(self) -> None:
        assert self.allocator.used == sum(1 << order for _, order in self.held)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=examples(60), stateful_step_count=50)


def test_the_block_that_was_freed_last_is_used_first() -> None:
    allocator = BlockAllocator(SIZE)
    blocks = [allocator.allocate(MIN_BLOCK) for _ in range(8)]
    allocator.free(*blocks[3])
    allocator.free(*blocks[5])
    assert allocator.allocate(10) == blocks[5]


def test_sizes_are_rounded_to_where_numbers_may_begin() -> None:
    assert [aligned(size) for size in (0, 1, 7, 8, 9)] == [0, 8, 8, 8, 16]


@linux_only
def test_what_one_side_writes_the_other_reads() -> None:
    own, fd = create_memory(SIZE)
    other = SharedMemory.receive(os.dup(fd), SIZE + NOTICE_BYTES)
    os.close(fd)
    own.mapped[10:13] = b"abc"
    assert other.array[10:13].tobytes() == b"abc"
    other.mapped[SIZE - 1 : SIZE] = b"z"
    assert own.array[SIZE - 1] == ord("z")
    assert (own.size, len(other.array)) == (SIZE + NOTICE_BYTES, SIZE + NOTICE_BYTES)
    assert own.announced == 0
    other.announce(2**40 + 1)
    assert own.announced == 2**40 + 1
    assert own.array[SIZE - 1] == ord("z"), "the notice lies behind all blocks"


@linux_only
@pytest.mark.parametrize("size", [0, MIN_BLOCK, 2 * SIZE])
def test_nobody_makes_the_memory_another_size(size: int) -> None:
    memory, fd = create_memory(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, size)
    memory.mapped[SIZE - 1 : SIZE] = b"x"
    os.close(fd)


@linux_only
def test_memory_that_is_not_sealed_or_of_another_size_is_refused_and_its_descriptor_closed() -> None:
    open_one = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(open_one, SIZE)
    _, small = create_memory(SIZE // 2)
    file = os.open("/proc/self/status", os.O_RDONLY)
    for fd in (open_one, small, file):
        with pytest.raises((Unsupported, OSError)):
            SharedMemory.receive(fd, SIZE)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@linux_only
def test_the_pages_of_a_large_block_go_back_when_it_is_free() -> None:
    size = 8 << 20
    memory, fd = create_memory(size)
    memory.mapped[:size] = b"x" * size
    used = os.fstat(fd).st_blocks
    give_back(memory, 0, 12)  # a small one stays
    assert os.fstat(fd).st_blocks == used
    give_back(memory, 4 << 20, 22)
    assert os.fstat(fd).st_blocks <= used // 2
    assert memory.mapped[(4 << 20) - 1 : (4 << 20) + 1] == b"x\0"
    os.close(fd)


def test_a_view_of_the_memory_outlives_its_owner() -> None:
    if sys.platform != "linux":
        pytest.skip("memory that is sealed is Linux's")
    memory, fd = create_memory(MIN_BLOCK)
    os.close(fd)
    view = memory.array[:3]
    memory.mapped[:3] = b"abc"
    del memory
    assert view.tobytes() == b"abc"
    assert mmap.PAGESIZE <= MIN_BLOCK
