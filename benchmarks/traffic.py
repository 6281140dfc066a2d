"""Draws ids as traffic does: uniform, Zipf, and as often as production reuses them.

A popularity gives the probability of each rank, hottest first; a shuffled numbering maps ranks to rows, so that
hot rows lie anywhere in memory and on disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from storage.tiers.planning.use_codes import codes_of_uses

Array = np.ndarray[Any, Any]
BATCH = 13_312  # 26 features of 512 samples
ZIPF = 1.05
REUSE_FILE = Path(__file__).parent / "dlrm_reuse_2022.json"


def random_ids(count: int, seed: int = 1) -> Array:
    """Returns (count,) int64 unique ids, from 1 to 2^63 - 1, in random order."""
    rng = np.random.default_rng(seed)
    ids = np.empty(0, np.int64)
    while len(ids) < count:
        ids = np.unique(np.concatenate([ids, rng.integers(1, 2**63 - 1, count - len(ids) + 1024, dtype=np.int64)]))
    rng.shuffle(ids)
    return ids[:count]


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


class Traffic:
    """Draws batches of row numbers by popularity; `numbering[rank]` is the row that has a rank."""

    def __init__(self, popularity: Popularity, seed: int = 2) -> None:
        self.popularity = popularity
        self._rng = np.random.default_rng(seed)
        self.numbering = self._rng.permutation(popularity.count)

    def numbers(self, count: int) -> Array:
        """Returns (count,) int64 row numbers."""
        return self.numbering[self.popularity.ranks(self._rng, count)]

    def batches(self, count: int, size: int = BATCH) -> Array:
        """Returns (count, size) int64 row numbers."""
        return self.numbers(count * size).reshape(count, size)

    def replace_hot_set(self) -> None:
        """Assigns every rank to another row from now on."""
        self.numbering = self._rng.permutation(self.popularity.count)


def expected_codes(popularity: Popularity) -> Array:
    """Returns (n,) use codes by rank, as training would have counted them: the coldest rank is seen once."""
    weights = popularity.weights()
    return codes_of_uses(np.minimum(weights / weights[-1], 1e6))
