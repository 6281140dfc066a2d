"""Searches files for many byte strings at once, whatever their format.

Every window of eight bytes of a file is compared with the first eight bytes of each needle: flags that a hash of its
first four bytes indexes leave few windows, which a sorted array settles, and the rest of the needle is compared last.
Pages and tables have rows and ids at multiples of four and of two bytes, so that other windows need not be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

_WINDOW = 8
_PIECE_BYTES = 4 << 20
_BITS = 20
_FACTOR = np.uint32(0x9E3779B1)
_WORD = 4


class Needles:
    """Byte strings, each with a text that says what it is. Not thread-safe while it is filled."""

    def __init__(self) -> None:
        self._found: dict[bytes, str] = {}
        self._starts: np.ndarray | None = None
        self._by_start: dict[int, list[bytes]] = {}
        self._flags = np.empty(0, np.bool_)
        self._longest = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, needle: bytes, what: str) -> bool:
        """Adds a byte string. False, and nothing is added, where it is too plain to be told from other bytes.

        That are fewer than eight bytes, and one word again and again, as zeros.
        """
        if len(needle) < _WINDOW or len(needle) == needle.count(needle[:1]) or len({*_words(needle)}) < 2:
            return False
        self._found.setdefault(needle, what)
        self._starts = None
        return True

    def add_id(self, number: int) -> bool:
        """Adds an id as files and keys have it, and as text; False for a small one, whose bytes lie everywhere."""
        if -(2**40) < number < 2**40:
            return False
        raw = number & (2**64 - 1)
        self._found.setdefault(raw.to_bytes(8, "little"), "id")
        self._found.setdefault((raw ^ (1 << 63)).to_bytes(8, "big"), "id")
        self._found.setdefault(str(number).encode(), "id")
        self._starts = None
        return True

    def search(self, path: Path, on_bytes: Callable[[int], None] = lambda _: None, *, step: int = 1) -> dict[str, int]:
        """Returns how often a file holds needles, by what they are.

        on_bytes: called with how many more were read. step: 1, 2 or 4; needles begin at multiples of it in this file.
        """
        if self._starts is None:
            self._index()
        counts: dict[str, int] = {}
        if not self._found:
            return counts
        with path.open("rb") as file:
            before = b""
            while piece := file.read(_PIECE_BYTES):
                on_bytes(len(piece))
                data = before + piece
                # A needle that ends behind this piece begins in the part that the next one repeats.
                until = max(0, (len(data) - self._longest) // _WORD * _WORD)
                self._count(data, until, counts, step)
                before = data[until:]
            self._count(before, len(before), counts, step)
        return counts

    def _count(self, data: bytes, until: int, counts: dict[str, int], step: int) -> None:
        """Counts the needles that begin before a place of `data`, which is a multiple of four."""
        assert self._starts is not None
        for shift in range(0, _WORD, step):
            words = (len(data) - shift) // _WORD
            if words < 2:
                continue
            values = np.frombuffer(data, "<u4", words, shift)
            likely = np.flatnonzero(self._flags.take(_hashed(values[:-1])))
            found = values[likely].astype(np.uint64) | values[likely + 1].astype(np.uint64) << np.uint64(32)
            sure = np.isin(found, self._starts)
            for place, start in zip((likely[sure] * _WORD + shift).tolist(), found[sure].tolist(), strict=True):
                for needle in self._by_start[start] if place < until else ():
                    if data.startswith(needle, place):
                        what = self._found[needle]
                        counts[what] = counts.get(what, 0) + 1

    def _index(self) -> None:
        self._by_start = {}
        for needle in self._found:
            self._by_start.setdefault(int.from_bytes(needle[:_WINDOW], "little"), []).append(needle)
        self._starts = np.array(sorted(self._by_start), np.uint64)
        self._flags = np.zeros(1 << _BITS, np.bool_)
        self._flags[_hashed(self._starts.astype(np.uint32))] = True
        self._longest = max(map(len, self._found), default=_WINDOW)


def _words(needle: bytes) -> Iterable[bytes]:
    return (needle[place : place + 4] for place in range(0, len(needle) - 3, 4))


def _hashed(values: np.ndarray) -> np.ndarray:
    return (values * _FACTOR) >> np.uint32(32 - _BITS)
