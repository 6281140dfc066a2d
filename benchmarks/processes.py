"""The processes of a server."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
