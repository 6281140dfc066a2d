"""Moments and ages as commands print them."""

from __future__ import annotations

import time


def age(unix_ms: int) -> str:
    """Returns how long ago a moment was, such as "3 min"."""
    seconds = max(0.0, time.time() - unix_ms / 1000)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def utc(unix_ms: int | None) -> str:
    """Returns a moment as 2026-11-28 07:45:51; "" for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(unix_ms / 1000)) if unix_ms else ""
