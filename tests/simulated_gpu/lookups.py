"""Counts how many ids kernels looked up on simulated GPUs, and how many they missed.

A miss changes no answer, so no other test detects a cache that holds next to nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from storage.hbm.lookup_kernels import PACKED_FEATURE_WORD, PACKED_FEATURE_WORDS, header_words

# Fewer ids than this prove nothing; of more, a cache that is in use finds at least this share.
LEAST_IDS, LEAST_HITS = 1000, 0.02


@dataclass
class Lookups:
    """Counts of lookups. Thread-safe."""

    #: Ids that kernels looked up.
    ids: int = 0
    #: Ids that they did not find.
    misses: int = 0

    def __sub__(self, before: Lookups) -> Lookups:
        return Lookups(self.ids - before.ids, self.misses - before.misses)

    @property
    def why_useless(self) -> str:
        """Returns a message for a cache that finds next to nothing; "" for other caches, or for too few ids."""
        if self.ids < LEAST_IDS or self.misses <= (1 - LEAST_HITS) * self.ids:
            return ""
        return f"{self.misses:,} of {self.ids:,} ids that GPUs looked up were missed: their caches hold next to nothing"


# Counts of all simulated GPUs of the process.
everywhere = Lookups()
_lock = threading.Lock()


def counted(own: Lookups, name: str, values: Sequence[int], blocks: tuple[int, int], run: Callable[[], None]) -> None:
    """Runs a kernel; counts its lookups for its GPU and for all. values: checked addresses and sizes."""
    if not name.startswith("lookup_"):
        run()
        return
    header, count = values[1], values[4]
    words = _words(header, header_words(blocks[1]))
    ids = int(words[PACKED_FEATURE_WORD + 1 :: PACKED_FEATURE_WORDS].clip(min=0).sum()) if words[1] > 0 else 0
    before = int(_words(count, 1)[0])
    run()
    misses = int(_words(count, 1)[0]) - before
    with _lock:
        for each in (own, everywhere):
            each.ids += ids
            each.misses += misses


def _words(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address)).copy()
