"""Measures how much of the processors others used during a measurement, by the kernel's own account (Linux).

It counts processor time. It does not see caches and memory bandwidth that others used, nor, except for stolen time,
other guests of the same machine: a repeat that it accepts may still have been slowed down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

# In cores. A disk measurement allows half a core more: its interrupts and kernel threads belong to no process.
QUIET_CORES = 0.15
QUIET_CORES_DISK = 0.65
_TICKS = os.sysconf("SC_CLK_TCK")
_STAT = Path("/proc/stat")


class CpuGauge:
    """Measures the cores that other processes kept busy between `start` and `stop`.

    children: pids that count as ours.
    """

    def __init__(self, quiet_cores: float = QUIET_CORES, children: Sequence[int] = ()) -> None:
        self.quiet_cores = quiet_cores
        self.children = list(children)
        self._began = (0.0, 0.0, 0.0)

    def start(self) -> None:
        """Begins a measurement."""
        self._began = self._now()

    def stop(self) -> float:
        """Returns the cores that others used since `start`: 0.5 is half of one. 0 where the kernel does not say."""
        wall, busy, ours = (now - then for now, then in zip(self._now(), self._began, strict=True))
        return max(0.0, busy - ours) / wall if wall > 0 else 0.0

    def is_disturbed(self, cores: float) -> bool:
        """Returns whether others used so many cores that a repeat is not to be trusted."""
        return cores > self.quiet_cores

    def _now(self) -> tuple[float, float, float]:
        # Programs that we ran and waited for count as ours too.
        ours = sum(os.times()[:4]) + sum(map(process_seconds, self.children))
        return time.perf_counter(), busy_seconds(), ours


def busy_seconds() -> float:
    """Returns the seconds that all cores together worked since the machine started, stolen time included."""
    if not _STAT.exists():
        return 0.0
    fields = [int(word) for word in _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / _TICKS


def process_seconds(pid: int) -> float:
    """Returns the seconds that a process and the children it waited for have worked; 0 for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    words = text.rpartition(")")[2].split()
    return sum(int(word) for word in words[11:15]) / _TICKS
