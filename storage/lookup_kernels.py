"""The kernels of a card's replica of a cache: lookups, rows that come late, and the lists that change the replica.

What they read and write is in cuda/lookup.cuh, cuda/late_rows.cuh and cuda/publish.cuh, each at its top. Arguments
that are addresses are the card's, as ints; lists and staging may lie in pinned memory of the host. Sizes are bounds:
what a batch or a list really holds is read on the card, so that every launch may be part of a graph. Nothing waits.
"""

from __future__ import annotations

import threading
from typing import Literal

from storage.errors import ConfigError
from storage.kernels import THREADS, Kernels

OutputType = Literal["fp32", "fp16", "bf16"]

# Of each source. The kernels of an output type end with its name.
SOURCES = {
    "lookup_gather": ("lookup_gather_fp32", "lookup_gather_fp16", "lookup_gather_bf16"),
    "lookup_pool": ("lookup_pool",),
    "late_rows": ("late_rows_fp32", "late_rows_fp16", "late_rows_bf16", "late_rows_add"),
    "publish": ("publish_rows", "publish_stores"),
}
FEATURE_WORDS = 16
FEATURE_SHIFT = 48

_WARP = 32
# Blocks for each feature or list: threads stride over what is more. A first guess, not measured.
_BLOCKS_AT_MOST = 1024


class LookupKernels:
    """On one card, any thread whose current card it is; launches are as those of Kernels, errors too."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._lock = threading.Lock()
        self._functions: dict[str, int] | None = None

    def load(self) -> None:
        """Compiles and loads what was not yet. Before the first capture, as Kernels.load.

        Raises ConfigError without CuPy or NVRTC.
        """
        with self._lock:
            if self._functions is None:
                loaded: dict[str, int] = {}
                for source, names in SOURCES.items():
                    loaded |= self._kernels.functions(source, names)
                self._functions = loaded

    def gather(
        self,
        output: OutputType,
        *,
        features: int,
        feature_count: int,
        header: int,
        rows: int,
        longest: int,
        misses: int,
        miss_count: int,
        miss_room: int,
        use_every: int,
        stream: int,
    ) -> None:
        """Unpooled features: rows of ids, decoded, to their places.

        features: the table of the features, at most 65535. header: stamp and batch. rows: of the largest batch.
        longest: output rows of the longest feature. misses: list of miss_room entries. miss_count: how many there
        were, set to 0 before on the same stream. use_every: which lookups mark their row as used: every so many, a
        power of two; 0 for none. Raises ConfigError for another number.
        """
        values = (features, header, rows, misses, miss_count, miss_room, _use_mask(use_every))
        self._launch(f"lookup_gather_{output}", longest, feature_count, values, stream)

    def pool(
        self,
        *,
        features: int,
        feature_count: int,
        header: int,
        rows: int,
        misses: int,
        miss_count: int,
        miss_room: int,
        use_every: int,
        stream: int,
    ) -> None:
        """Pooled features: bags summed in float32, in the order of the ids. Arguments as those of gather."""
        values = (features, header, rows, misses, miss_count, miss_room, _use_mask(use_every))
        self._launch("lookup_pool", rows * _WARP, feature_count, values, stream)

    def scatter_late(
        self,
        output: OutputType,
        *,
        features: int,
        header: int,
        rows: int,
        entries: int,
        count: int,
        room: int,
        staging: int,
        stream: int,
    ) -> None:
        """Rows that gather missed, to their places.

        entries: list of `room` entries. count: where it stands how many of them are given. staging: decoded rows,
        float32.
        """
        values = (features, header, rows, entries, count, room, staging, 0)
        self._launch(f"late_rows_{output}", room * _WARP, 1, values, stream)

    def add_late(
        self,
        *,
        features: int,
        header: int,
        rows: int,
        entries: int,
        count: int,
        room: int,
        staging: int,
        weights: int,
        stream: int,
    ) -> None:
        """Rows that pool missed, added to their bags, within the rounding that late_rows.cuh states.

        weights: float32 of the late rows, 0 where no feature is weighted; the rest as in scatter_late.
        """
        values = (features, header, rows, entries, count, room, staging, weights)
        self._launch("late_rows_add", room * _WARP, 1, values, stream)

    def publish_rows(
        self,
        *,
        entries: int,
        count: int,
        room: int,
        staging: int,
        staged: int,
        slab: int,
        slots: int,
        stride: int,
        stream: int,
    ) -> None:
        """Rows of staging into slots of the slab. staged: rows in staging. stride: bytes from row to row in both.

        Before the list of words that name the slots, and never into a slot that a lookup can hold: see publish.cuh.
        """
        values = (entries, count, room, staging, staged, slab, slots, stride)
        self._launch("publish_rows", room * (stride // 16 or 1), 1, values, stream)

    def publish_stores(self, *, entries: int, count: int, room: int, lines: int, line_count: int, stream: int) -> None:
        """Words or ids of the index. Which of them together, and when: see publish.cuh."""
        self._launch("publish_stores", room, 1, (entries, count, room, lines, line_count), stream)

    def _launch(self, name: str, threads: int, across: int, values: tuple[int, ...], stream: int) -> None:
        if self._functions is None:
            self.load()
        assert self._functions is not None
        blocks = min(max(-(-threads // THREADS), 1), _BLOCKS_AT_MOST)
        # A grid has no side of 0; a launch for no feature would read one.
        if across > 0:
            self._kernels.launch(name, self._functions[name], (blocks, across), values, stream)


def _use_mask(use_every: int) -> int:
    if use_every < 0 or use_every & (use_every - 1):
        raise ConfigError(f"use_every: expected 0 or a power of two, got {use_every}")
    return use_every - 1
