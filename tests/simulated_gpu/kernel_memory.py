"""Finds the memory that a kernel of cuda/ will touch, from its arguments and the tables and lists that they point to.

A GPU follows any address. Here all of it must be memory that the call names, before the kernel runs.
Where a table of features points to a replica (index buckets, slab, marks of use), any buffer that is alive is valid: a
graph may be launched again after the table was rewritten for another replica than the one it was captured with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from storage.hbm.kernel_sources import ROW_TYPES, SOURCES
from storage.hbm.lookup_kernels import (
    FEATURE_SHIFT,
    FEATURE_WORDS,
    PACKED_FEATURE_WORD,
    PACKED_FEATURE_WORDS,
    header_words,
)
from storage.hbm.sharing import PEER_CHAIN_WORDS, PEER_CHAINS_WORD, PEER_WORDS
from tests.simulated_gpu.buffers import DEVICE, Buffers, Part
from tests.simulated_gpu.mistakes import LifetimeError, MisuseError

KERNELS = frozenset(name for names in SOURCES.values() for name in names)

_WORD_BYTES, _BUCKET_BYTES, _ENTRY_BYTES, _LATE_BAG_BYTES, _RANGE_BYTES = 8, 64, 16, 32, 8
_WEIGHTED = 3
_ROW_MASK = (1 << FEATURE_SHIFT) - 1


class Reach:
    """Checks the memory that one launch reaches. held: arrays that must stay alive while it runs."""

    def __init__(self, name: str, named: Sequence[Part], buffers: Buffers, *peers: Buffers) -> None:
        """named: parts that the call declares. peers: buffers of the GPUs that it may read. Raises LifetimeError."""
        self.name = name
        # A graph's part may be a replica that was dropped; the table of features tells whether it is still used.
        self.held = [part.bytes() for part in named if part.buffer.is_alive]
        self._named = named
        self._buffers = buffers
        self._peers = peers

    def words(self, what: str, address: int, count: int) -> list[int]:
        """Returns `count` int64 words. Raises MisuseError."""
        return (
            [] if count <= 0 else self._bytes(what, address, count * _WORD_BYTES, _WORD_BYTES).view(np.int64).tolist()
        )

    def named(self, what: str, address: int, size: int, unit: int = 1) -> None:
        """Checks that these bytes, at a multiple of `unit`, are named by the call. Raises MisuseError."""
        if size > 0:
            self._bytes(what, address, size, unit)

    def living(self, what: str, address: int, size: int, unit: int = 1) -> None:
        """Checks that these bytes belong to a live buffer of the GPU. Raises LifetimeError."""
        part = self._buffers.at(address, size)
        if part is None or part.buffer.kind != DEVICE or address % unit:
            raise LifetimeError(
                f"kernel {self.name!r}: {what}, {size} bytes at {address:#x}, are no buffer's that lives"
            )
        self.held.append(part.bytes())

    def elsewhere(self, what: str, address: int, size: int, unit: int = 1) -> None:
        """Checks that these bytes belong to a live buffer of a GPU that this one reads from. Raises LifetimeError."""
        found = [each for each in (peer.peer_at(address, size) for peer in self._peers) if each is not None]
        if not found or address % unit:
            raise LifetimeError(
                f"kernel {self.name!r}: {what}, {size} bytes at {address:#x}, are no buffer's that lives on a GPU "
                "which it reaches"
            )
        self.held += found

    def _bytes(self, what: str, address: int, size: int, unit: int) -> np.ndarray:
        part = self._buffers.at(address, size)
        if part is None or address % unit:
            raise MisuseError(f"kernel {self.name!r}: {what}, {size} bytes at {address:#x}, are no buffer's")
        for each in self._named:
            if each.buffer is part.buffer and each.begin <= part.begin and part.end <= each.end:
                return part.bytes()
        raise MisuseError(f"kernel {self.name!r} goes to {part} for {what}, and does not name it")


def look(reach: Reach, values: Sequence[int], blocks: tuple[int, int]) -> None:
    """Checks everything that a launch reaches. Raises MisuseError, LifetimeError."""
    _LOOKS[reach.name](reach, values, blocks)


def _lookup(reach: Reach, values: Sequence[int], blocks: tuple[int, int]) -> None:
    features, header, rows, misses, count, room, _ = values
    reach.named("the list of misses", misses, room * _ENTRY_BYTES, _WORD_BYTES)
    reach.named("the number of misses", count, _WORD_BYTES, _WORD_BYTES)
    words = reach.name.split("_")
    row_type = ROW_TYPES[words[3] if words[2] == "across" else words[2]]
    for number in range(blocks[1]):
        feature = _Feature(reach, features, header, number, rows)
        if feature.row_type != row_type:
            continue  # another launch does it
        feature.look_at_output(feature.output_rows)
        feature.look_at_batch()


def _late(reach: Reach, values: Sequence[int], blocks: tuple[int, int]) -> None:
    features, header, rows, entries, count, room, staging, weights = values
    adds = reach.name == "missed_rows_add"
    length = (_LATE_BAG_BYTES if adds else _ENTRY_BYTES) // _WORD_BYTES
    given = max(0, min(reach.words("the number of entries", count, 1)[0], room))
    words = reach.words("the entries", entries, given * length)
    known: dict[int, _Feature] = {}
    for at in range(0, given * length, length):
        number, row = words[at] >> FEATURE_SHIFT, words[at] & _ROW_MASK
        if number not in known:
            known[number] = _Feature(reach, features, header, number, rows)
            if adds:
                known[number].look_at_ranges()
        feature = known[number]
        feature.look_at_output(row + 1)
        late = words[at + 2] if adds else 1
        reach.named("missed rows", staging + 4 * words[at + 1], 4 * late * feature.dim, 4)
        if adds and weights and feature.shape == _WEIGHTED:
            reach.named("weights of missed rows", weights + 4 * words[at + 3], 4 * late, 4)


def _publish_rows(reach: Reach, values: Sequence[int], blocks: tuple[int, int]) -> None:
    entries, count, room, staging, staged, slab, slots, stride = values
    given = max(0, min(reach.words("the number of entries", count, 1)[0], room))
    reach.named("the entries", entries, given * _ENTRY_BYTES, _WORD_BYTES)
    unit = 16 if stride % 16 == 0 else 4
    reach.named("staged rows", staging, staged * stride, unit)
    reach.named("the slab", slab, (slots + 1) * stride, unit)


def _publish_stores(reach: Reach, values: Sequence[int], blocks: tuple[int, int]) -> None:
    entries, count, room, buckets, bucket_count = values
    given = max(0, min(reach.words("the number of entries", count, 1)[0], room))
    reach.named("the entries", entries, given * _ENTRY_BYTES, _WORD_BYTES)
    reach.named("the index", buckets, bucket_count * _BUCKET_BYTES, _BUCKET_BYTES)


_LOOKS: Mapping[str, Callable[[Reach, Sequence[int], tuple[int, int]], None]] = {
    **dict.fromkeys((*SOURCES["lookup_gather"], *SOURCES["lookup_pool"]), _lookup),
    **dict.fromkeys(SOURCES["lookup_across"], _lookup),
    **dict.fromkeys(SOURCES["missed_rows"], _late),
    "publish_rows": _publish_rows,
    "publish_stores": _publish_stores,
}


class _Feature:
    """A row of the table of features, and its part of a header; see cuda/lookup.cuh."""

    def __init__(self, reach: Reach, features: int, header: int, number: int, rows: int) -> None:
        """rows: the rows that the launch was sized for."""
        self._reach, self._number, self._header = reach, number, header
        at = features + number * FEATURE_WORDS * _WORD_BYTES
        words = reach.words("the table of features", at, FEATURE_WORDS)
        packed = PACKED_FEATURE_WORD + number * PACKED_FEATURE_WORDS
        header_all = reach.words("the header", header, header_words(number + 1))
        self._replica, self.row_type = words[:5], words[5]
        self._peers, self._parts, self._part = words[11], words[12] & 0xFFFFFFFF, words[12] >> 32
        self._peer_chains = header_all[PEER_CHAINS_WORD]
        self.dim, self._uses, self._bound, self.shape, self._output, self._states = (
            words[i] for i in (6, 8, 10, 13, 14, 15)
        )
        self._batch = max(0, min(header_all[1], rows))
        self._ids, self._count, self._ranges, self._weights = header_all[packed : packed + PACKED_FEATURE_WORDS]
        is_scattered = reach.name in SOURCES["missed_rows"] and reach.name != "missed_rows_add"
        self._is_gathered = is_scattered or reach.name.startswith("lookup_gather_")
        has_output = self._is_gathered and not reach.name.startswith("lookup_gather_across_")
        self._value_bytes = 2 if has_output and reach.name.endswith(("fp16", "bf16")) else 4
        unbounded = self._is_gathered and self.shape <= 0
        self.output_rows = self._bound if unbounded else rows * self.shape if self._is_gathered else rows
        self._has_ranges = not unbounded

    def look_at_output(self, rows: int) -> None:
        """Checks the first `rows` rows of the output."""
        rows = min(rows, self.output_rows)
        self._reach.named(f"the output of feature {self._number}", self._output, rows * self.dim * self._value_bytes, 2)
        if self._states:
            self._reach.named(f"the states of feature {self._number}", self._states, rows)

    def look_at_ranges(self) -> None:
        """Checks the ranges of the batch's rows."""
        if self._has_ranges and self._ranges:
            at = self._header + self._ranges
            self._reach.named(f"the ranges of feature {self._number}", at, self._batch * _RANGE_BYTES, 8)

    def look_at_batch(self) -> None:
        """Checks ids, ranges and weights; and the index and rows that are searched, if there are any ids."""
        reach, of = self._reach, f"of feature {self._number}"
        self.look_at_ranges()
        count = min(self._count, self._bound)
        if self._ids <= 0 or count <= 0:
            return
        reach.named(f"the ids {of}", self._header + self._ids, count * _WORD_BYTES, _WORD_BYTES)
        if self._weights and not self._is_gathered and self.shape == _WEIGHTED:
            reach.named(f"the weights {of}", self._header + self._weights, 4 * count, 4)
        buckets, bucket_count, slab, slots, stride = self._replica
        reach.living(f"the index {of}", buckets, bucket_count * _BUCKET_BYTES, _BUCKET_BYTES)
        reach.living(f"the slab {of}", slab, (slots + 1) * stride, 16 if stride % 16 == 0 else 4)
        if self._uses:
            reach.living(f"the marks of use {of}", self._uses, slots + 1)
        if "across" in reach.name and self._peers and self._peer_chains:
            self._look_at_peers(of, stride)

    def _look_at_peers(self, of: str, stride: int) -> None:
        reach = self._reach
        words = reach.words(f"what other GPUs have {of}", self._peers, PEER_WORDS * self._parts)
        at = self._header + self._peer_chains
        chains = reach.words("the chains of other GPUs", at, PEER_CHAIN_WORDS * self._parts)
        for part in range(self._parts):
            buckets, bucket_count, slab, slots, uses = words[PEER_WORDS * part :][:PEER_WORDS]
            if part == self._part or buckets == 0 or chains[PEER_CHAIN_WORDS * part] < 0:
                continue
            name = f"{of} on GPU {part}"
            reach.elsewhere(f"the index {name}", buckets, bucket_count * _BUCKET_BYTES, _BUCKET_BYTES)
            reach.elsewhere(f"the slab {name}", slab, (slots + 1) * stride, 16 if stride % 16 == 0 else 4)
            if uses:
                reach.elsewhere(f"the marks of use {name}", uses, slots + 1)
