"""Samples memory, open files and a folder of a long run: they may vary, but not grow with time."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

from benchmarks.machine import rss_bytes

_MIB = 1 << 20
# By measured quantity: how far the last third may be above the middle one, as a factor and in its own unit.
SLACK = {
    "memory MiB": (1.25, 64.0),
    "open files": (1.5, 24.0),
    "files": (1.5, 24.0),
    "disk MiB": (1.5, 64.0),
}


class Watch:
    """Samples taken by `sample`; `check` raises AssertionError for what grew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.samples: dict[str, list[float]] = {name: [] for name in SLACK}

    def sample(self) -> None:
        """Takes one sample."""
        sizes = []
        for place, _, names in os.walk(self._folder):  # The walk leaves out what is removed meanwhile.
            for name in names:
                try:
                    sizes.append(os.lstat(os.path.join(place, name)).st_blocks * 512)
                except FileNotFoundError:
                    continue
        now = {
            "memory MiB": rss_bytes(os.getpid()) / _MIB,
            "open files": float(len(os.listdir("/proc/self/fd"))),
            "files": float(len(sizes)),
            "disk MiB": sum(sizes) / _MIB,
        }
        for name, value in now.items():
            self.samples[name].append(value)

    def thirds(self) -> dict[str, tuple[float, float]]:
        """Returns the medians of the second and of the last third of the samples, by what is watched."""
        found = {}
        for name, values in self.samples.items():
            third = len(values) // 3
            found[name] = (median(values[third : 2 * third]), median(values[2 * third :]))
        return found

    def check(self) -> None:
        """Checks that nothing has grown. Needs nine samples."""
        for name, (before, after) in self.thirds().items():
            factor, unit = SLACK[name]
            assert after <= before * factor + unit, f"{name} grew from {before:.0f} to {after:.0f}: {self.line()}"

    def line(self) -> str:
        """Summarises the samples in text for people."""
        return "; ".join(
            f"{name} {before:.0f} then {after:.0f}, at most {max(self.samples[name]):.0f}"
            for name, (before, after) in self.thirds().items()
        )
