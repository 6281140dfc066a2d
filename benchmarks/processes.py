"""Finds the processes of a server, and what they use while it has nothing to do."""

from __future__ import annotations

from pathlib import Path

import psutil


def family(pid: int) -> list[int]:
    """Returns the pids of a process and all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def running_ns(pid: int) -> int:
    """Returns the nanoseconds that the threads of a process have run; those of threads that have ended are not in it.

    The kernel counts the processor time of a process in hundredths of a second, which is too coarse for an idle one.
    """
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
