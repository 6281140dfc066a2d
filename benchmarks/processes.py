"""Finds the processes of a server."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[int]:
    """Returns the pids of a process and all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
