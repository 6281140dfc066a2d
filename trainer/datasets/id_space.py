"""Ids as real systems have them: spread over 63 bits, drawn by a power law, each with an effect of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_MASK = np.uint64(2**63 - 1)
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95))
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def spread_ids(numbers: Array, *, seed: int) -> Array:
    """Maps small numbers to ids all over [0, 2**63), one to one. numbers: (n,) of at least 0; returns int64 (n,).

    Odd factors and xor-shifts within 63 bits: each step can be undone, so two numbers never share an id.
    """
    x = numbers.astype(np.uint64) & _MASK
    with np.errstate(over="ignore"):
        x ^= np.uint64(seed * 2 + 1) * _ODD[1] & _MASK
        for odd in _ODD:
            x = (x * odd) & _MASK
            x ^= x >> np.uint64(32)
    return x.astype(np.int64)


def zipf_ranks(generator: np.random.Generator, count: int, ids: int, exponent: float) -> Array:
    """Draws ranks 0 to ids - 1, rank r about as often as (r + 1) ** -exponent. Returns int64 (count,).

    Inverts the bounded Pareto distribution, which takes one power for each draw and no table of `ids` entries.
    """
    u = generator.random(count)
    if abs(exponent - 1.0) < 1e-9:
        x = np.exp(u * np.log(ids + 1.0))
    else:
        power = 1.0 - exponent
        x = (1.0 + u * ((ids + 1.0) ** power - 1.0)) ** (1.0 / power)
    ranks: Array = np.minimum(x.astype(np.int64) - 1, ids - 1)
    return ranks


def id_effect(numbers: Array, *, seed: int) -> Array:
    """Returns what each id adds to the log-odds before scaling, float64 (n,): mean 0, variance 1, fixed for an id.

    It is the sum of four uniform 16-bit numbers of a hash, so near to normal, without a table of all ids.
    """
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) * _ODD[0] + np.uint64(seed + 1) * _ODD[1]
        x = (x ^ (x >> np.uint64(30))) * _MIX[0]
        x = (x ^ (x >> np.uint64(27))) * _MIX[1]
        x ^= x >> np.uint64(31)
    total = np.zeros(len(x))
    for part in range(4):
        total += ((x >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.float64)
    effect: Array = (total / 65536.0 - 2.0) * np.sqrt(3.0)
    return effect
