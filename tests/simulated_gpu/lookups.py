"""How many ids kernels were asked for on simulated GPUs, and how many they missed.

Whether anything is found changes no answer, so no other test sees a cache that holds next to nothing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from storage.hbm.lookup_kernels import PACKED_FEATURE_WORD, PACKED_FEATURE_WORDS, header_words

# Fewer ids than this say nothing; of more, this share is found by a cache that is in use.
LEAST_IDS, LEAST_HITS = 1000, 0.02


@dataclass
class Lookups:
    """ids: that kernels were asked for; misses: that they did not find. Any thread."""

    ids: int = 0
    misses: int = 0

    def __sub__(self, before: Lookups) -> Lookups:
        return Lookups(self.ids - before.ids, self.misses - before.misses)

    @property
    def why_useless(self) -> str:
        """Says of a cache that it finds next to nothing; "" of another one, or of too few ids."""
        if self.ids < LEAST_IDS or self.misses <= (1 - LEAST_HITS) * self.ids:
            return ""
        return f"{self.misses:,} of {self.ids:,} ids that GPUs looked up were missed: their caches hold next to nothing"


# Of all simulated GPUs of the process.
everywhere = Lookups()
_lock = threading.Lock()


def counted(own: Lookups, name: str, values: Sequence[int], blocks: tuple[int, int], run: Callable[[], None]) -> None:
    """Runs a kernel; counts what it looks up for its GPU, and for all. values: checked addresses and sizes."""
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
