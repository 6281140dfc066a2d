"""Finds out when all replicas switch, on a machine whose clock may differ from that of who wrote it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from storage.objects.served import Served

# Wrong by less, a clock says more than the times of two looks.
_CLOCK_MS = 100


@dataclass(frozen=True)
class Moment:
    """The moment of a switch, as it is known here."""

    #: By time.monotonic.
    at: float
    #: How far the clock here is ahead of that of who wrote it, at least; negative for behind; 0.0 where none is known.
    ahead_s: float


def moment_of(served: Served, not_before: float, *, longest_ms: float) -> Moment:
    """Returns when all switch, from what has just been read.

    not_before: by time.monotonic, when a look began that did not find it; so it was written after that, whatever the
    clocks say. longest_ms: nobody waits longer, whatever was written.
    """
    now = time.monotonic()
    lead_ms = min(max(0.0, float(served.commit_at_unix_ms - served.written_unix_ms)), longest_ms)
    passed_ms = float(time.time_ns() // 1_000_000 - served.written_unix_ms)
    at_most_ms = max(0.0, (now - not_before) * 1000)
    ahead_ms = passed_ms if passed_ms < 0 else max(0.0, passed_ms - at_most_ms)
    if abs(ahead_ms) > _CLOCK_MS:
        passed_ms = at_most_ms / 2
    left_ms = min(max(0.0, lead_ms - max(0.0, passed_ms)), lead_ms)
    return Moment(now + left_ms / 1000, ahead_ms / 1000 if abs(ahead_ms) > _CLOCK_MS and lead_ms else 0.0)
