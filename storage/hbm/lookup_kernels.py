"""Launches the kernels of a GPU's replica of a cache: lookups, missed rows, lists that change the replica.

Their arguments are described in cuda/lookup.cuh, cuda/missed_rows.cuh and cuda/publish.cuh, each at its top. All
tensors lie in device memory. Sizes are bounds: the actual size of a batch or a list is read on the device, so that
every launch may be part of a graph.
"""

from __future__ import annotations

from typing import Literal

import torch

from storage.errors import ConfigError
from storage.hbm.device import KernelCall
from storage.hbm.kernel_sources import THREADS

OutputType = Literal["fp32", "fp16", "bf16"]

# Sizes as in lookup.cuh: the table of the features, and the header of a batch.
FEATURE_WORDS = 16
FEATURE_SHIFT = 48
CHAIN_LENGTH_WORD = 2
CHAIN_WORD = 3
MOST_CHAIN = 8
PACKED_FEATURE_WORD = 12
PACKED_FEATURE_WORDS = 4
MOST_FEATURES = 65535

_WARP = 32
# The most blocks for each feature or list: threads stride over the rest. A first guess, not measured.
_BLOCKS_AT_MOST = 1024

Tensors = tuple[torch.Tensor, ...]


def header_words(feature_count: int) -> int:
    """Returns the length of a batch's header, in int64 words."""
    return PACKED_FEATURE_WORD + PACKED_FEATURE_WORDS * feature_count


def gather(
    output: OutputType,
    *,
    row_type: str,
    features: torch.Tensor,
    feature_count: int,
    header: torch.Tensor,
    rows: int,
    longest: int,
    misses: torch.Tensor,
    miss_count: torch.Tensor,
    miss_room: int,
    use_every: int,
    outputs: Tensors,
    shared: Tensors,
) -> KernelCall:
    """Writes the decoded rows of unpooled features to their places.

    row_type: of the features that this launch does; it leaves the others alone. features: (feature_count, 16) int64.
    header: begins with the header of a batch and has all that it refers to. rows: those of the largest batch. longest:
    output rows of the longest feature. misses: (miss_room, 2) int64. miss_count: int64, the number of misses, set to 0
    before on the same stream; several launches may append to one list. use_every: every use_every-th lookup marks its
    row as used, a power of two; 0 for none. outputs: outputs and states of these features, written in full. shared:
    index buckets, slabs and marks of use.

    Raises ConfigError for another use_every, and for no feature or too many.
    """
    values = (features, header, rows, misses, miss_count, miss_room, _use_mask(use_every))
    blocks = _blocks(longest, _checked(feature_count))
    # A list is appended to, so it is read too.
    reads, writes = (features, header, misses, miss_count), (misses, miss_count, *outputs)
    return KernelCall(f"lookup_gather_{row_type}_{output}", blocks, values, reads, writes, shared)


def pool(
    *,
    row_type: str,
    features: torch.Tensor,
    feature_count: int,
    header: torch.Tensor,
    rows: int,
    misses: torch.Tensor,
    miss_count: torch.Tensor,
    miss_room: int,
    use_every: int,
    outputs: Tensors,
    shared: Tensors,
) -> KernelCall:
    """Sums the bags of pooled features in float32, in the order of the ids.

    Arguments and errors are those of gather.
    """
    values = (features, header, rows, misses, miss_count, miss_room, _use_mask(use_every))
    blocks = _blocks(rows * _WARP, _checked(feature_count))
    reads, writes = (features, header, misses, miss_count), (misses, miss_count, *outputs)
    return KernelCall(f"lookup_pool_{row_type}", blocks, values, reads, writes, shared)


def scatter_missed(
    output: OutputType,
    *,
    features: torch.Tensor,
    header: torch.Tensor,
    rows: int,
    entries: torch.Tensor,
    count: torch.Tensor,
    room: int,
    staging: torch.Tensor,
    outputs: Tensors,
) -> KernelCall:
    """Writes the rows that gather missed to their places.

    entries: (room, 2) int64. count: int64, how many of them are given. staging: decoded rows, float32.
    """
    reads = (features, header, entries, count, staging)
    values = (features, header, rows, entries, count, room, staging, 0)
    return KernelCall(f"missed_rows_{output}", _blocks(room * _WARP), values, (*reads, *outputs), outputs)


def add_missed(
    *,
    features: torch.Tensor,
    header: torch.Tensor,
    rows: int,
    entries: torch.Tensor,
    count: torch.Tensor,
    room: int,
    staging: torch.Tensor,
    weights: torch.Tensor | None,
    outputs: Tensors,
) -> KernelCall:
    """Adds the rows that pool missed to their bags, within the rounding that missed_rows.cuh states.

    entries: (room, 4) int64. weights: float32 of the missed rows, None where no feature is weighted; the rest as in
    scatter_missed.
    """
    reads = (features, header, entries, count, staging, *_given(weights), *outputs)
    values = (features, header, rows, entries, count, room, staging, 0 if weights is None else weights)
    return KernelCall("missed_rows_add", _blocks(room * _WARP), values, reads, outputs)


def publish_rows(
    *,
    entries: torch.Tensor,
    count: torch.Tensor,
    room: int,
    staging: torch.Tensor,
    staged: int,
    slab: torch.Tensor,
    slots: int,
    stride: int,
) -> KernelCall:
    """Copies rows of staging into slots of the slab.

    staged: rows in staging. stride: bytes from row to row in both. entries: (room, 2) int64. Launch it before the list
    of words that name the slots, and never for a slot that a lookup can hold: see publish.cuh.
    """
    values = (entries, count, room, staging, staged, slab, slots, stride)
    blocks = _blocks(room * (stride // 16 or 1))
    return KernelCall("publish_rows", blocks, values, (entries, count, staging), (), (slab,))


def publish_stores(
    *, entries: torch.Tensor, count: torch.Tensor, room: int, buckets: torch.Tensor, bucket_count: int
) -> KernelCall:
    """Stores words or ids of the index. entries: (room, 2) int64. publish.cuh says which of them together, and when."""
    values = (entries, count, room, buckets, bucket_count)
    return KernelCall("publish_stores", _blocks(room), values, (entries, count), (), (buckets,))


def _blocks(threads: int, abreast: int = 1) -> tuple[int, int]:
    """Returns the blocks of the grid, x and y, at least 1 each."""
    return min(max(-(-threads // THREADS), 1), _BLOCKS_AT_MOST), abreast


def _given(tensor: torch.Tensor | None) -> Tensors:
    return () if tensor is None else (tensor,)


def _checked(feature_count: int) -> int:
    if not 1 <= feature_count <= MOST_FEATURES:
        raise ConfigError(f"feature_count: expected 1 to {MOST_FEATURES}, got {feature_count}")
    return feature_count


def _use_mask(use_every: int) -> int:
    if use_every < 0 or use_every & (use_every - 1):
        raise ConfigError(f"use_every: expected 0 or a power of two, got {use_every}")
    return use_every - 1
