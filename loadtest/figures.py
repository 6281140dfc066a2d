"""Computes the figures of a run, of its phases and of its seconds from what was counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from loadtest.counts import SecondCounts

QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p99.9": 0.999}


def quantile_key(name: str) -> str:
    """Returns the key of a quantile in figures: p99.9 is p99_9_ms."""
    return f"{name.replace('.', '_')}_ms"


def latency_figures(counts: SecondCounts, seconds: float, answered: int | None = None) -> dict[str, float]:
    """Returns requests, failures, unanswered, requests_per_second, and quantiles and the largest in milliseconds.

    Requests without an answer count in the quantiles with the time that they had waited. answered: good answers that
    came within these seconds; None where all of them did.
    """
    if answered is None:
        answered = counts.latency.total - counts.unanswered
    return {
        "requests": counts.latency.total + counts.failed,
        "failures": counts.failed,
        "unanswered": counts.unanswered,
        "requests_per_second": answered / seconds if seconds > 0 else 0.0,
        **{quantile_key(name): counts.latency.quantile(share) for name, share in QUANTILES.items()},
        "max_ms": counts.latency.largest if counts.latency.total else math.nan,
    }


def total(seconds: Iterable[SecondCounts]) -> SecondCounts:
    """Returns the sum of counts."""
    whole = SecondCounts()
    for each in seconds:
        whole.merge(each)
    return whole


def over_time(stretches: Mapping[int, SecondCounts], width: int) -> list[dict[str, Any]]:
    """Returns figures for each stretch of `width` seconds. Each entry has `second`, when it begins, and `seconds`."""
    found = []
    for begin in sorted(stretches):
        counts = stretches[begin]
        entry: dict[str, Any] = latency_figures(counts, width)
        entry["requests_per_second"] = counts.answered / width
        entry.update(second=begin, seconds=width)
        found.append(entry)
    return found
