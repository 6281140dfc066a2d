"""Draws ids uniformly, by Zipf's law, or as often as production models reuse them.

A popularity gives the probability of each rank, hottest first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: The exponent of Zipf's law where none is given.
ZIPF = 1.05
#: Locality statistics of 788 tables of production models: see the file.
REUSE_FILE = Path(__file__).parent / "dlrm_reuse_2022.json"


class Popularity:
    """Probabilities of ranks, hottest first. weights: (n,) of any scale, descending."""

    def __init__(self, name: str, weights: Array) -> None:
        self.name = name
        self._cumulative = np.cumsum(weights, dtype=np.float64)
        self._cumulative /= self._cumulative[-1]

    @property
    def count(self) -> int:
        """The number of ranks."""
        return len(self._cumulative)

    def weights(self) -> Array:
        """Returns (n,) probabilities, descending."""
        return np.diff(self._cumulative, prepend=0.0)

    def best_static(self, rows: int) -> float:
        """Returns the share of lookups of the `rows` hottest ranks: the hit rate of the best static choice."""
        return 0.0 if rows <= 0 else float(self._cumulative[min(rows, self.count) - 1])

    def ranks(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count,) int64 ranks independently."""
        # Sorted, the search runs through memory once instead of missing a cache line at every step.
        drawn = np.searchsorted(self._cumulative, np.sort(rng.random(count)), side="right")
        ranks = np.minimum(drawn, self.count - 1)
        rng.shuffle(ranks)
        return ranks


def uniform(count: int) -> Popularity:
    """Gives every id the same probability."""
    return Popularity("uniform", np.ones(count))


def zipf(count: int, exponent: float = ZIPF) -> Popularity:
    """Gives rank r the weight r^-exponent."""
    return Popularity(f"Zipf({exponent})", np.arange(1, count + 1, dtype=np.float64) ** -exponent)


def production_reuse(count: int, path: Path = REUSE_FILE) -> Popularity:
    """Reuses ids as often as production models do, scaled to `count` distinct ids.

    The file gives, for classes of ids by how often one occurs, their share of all lookups. A class has as many ids as
    its lookups at the class's mean frequency make; within a class frequencies are spread evenly on a logarithmic scale.
    The share of the ids, given too, is rounded to a thousandth: too coarse for the few hot ids that matter most.
    """
    table = json.loads(path.read_text(encoding="utf-8"))
    lookups, ids = float(table["lookups"]), float(table["ids"])
    weights: list[Array] = []
    for low, high, share in table["classes"]:
        first = low + 1  # the class is (low, high]
        mean = first if first >= high else (high - first) / np.log(high / first)
        members = max(1, round(share * lookups / mean / ids * count))
        weights.append(np.geomspace(first, high, members))
    every = np.sort(np.concatenate(weights))[::-1]
    # Rounding leaves a few more or fewer than requested; they are ids that occur once.
    every = every[:count] if len(every) >= count else np.concatenate([every, np.ones(count - len(every))])
    return Popularity("production reuse", every)


def parse_popularity(text: str, count: int) -> Popularity:
    """Returns what `text` names, over `count` ids: uniform, zipf, zipf:EXPONENT or reuse. Raises ValueError."""
    name, colon, exponent = text.partition(":")
    if name == "zipf":
        try:
            value = float(exponent) if colon else ZIPF
        except ValueError:
            value = 0.0
        if 0 < value <= 10:
            return zipf(count, value)
    elif not colon and name in ("uniform", "reuse"):
        return uniform(count) if name == "uniform" else production_reuse(count)
    raise ValueError(f"expected uniform, zipf, zipf:EXPONENT such as zipf:1.2, or reuse; got {text!r}")
