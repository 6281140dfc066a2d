"""Records what it took until each model answered its first request."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from serving.updates.live_model import LiveModel
from storage.errors import StoreError
from storage.objects.mirror import RepositoryMirror

logger = logging.getLogger("emberline.serving")


@dataclass(frozen=True)
class Start:
    """The costs of the first start of a model."""

    #: Since the process was started.
    seconds: float
    #: Bytes that had come from the object store by then, for all models; 0 for a repository of this machine.
    read_bytes: int
    dram_rows: int
    #: Share of lookups that these rows were expected to answer; None when no hot ids were there.
    hit_rate: float | None


class Starts:
    """The first start of each model since this process began."""

    def __init__(self, began: float, mirror: RepositoryMirror | None) -> None:
        """began: when the process was started, as of time.monotonic()."""
        self._began = began
        self._mirror = mirror
        self._starts: dict[str, Start] = {}

    def note(self, model: LiveModel) -> None:
        """Notes that a model is ready, if it is, for the first time."""
        mount = model.default
        if mount is None or model.name in self._starts:
            return
        try:
            rows = mount.store.stats().rows["dram"]
        except StoreError:  # it is unloaded already
            return
        start = Start(
            time.monotonic() - self._began,
            0 if self._mirror is None else self._mirror.traffic.bytes_read,
            rows,
            mount.store.hot.expected_hit_rate(),
        )
        self._starts = {**self._starts, model.name: start}
        came = ""
        if self._mirror is not None:
            folders = self._mirror.status(model.name).folders
            came = f"{folders} versions and deltas came, {start.read_bytes / 2**20:,.1f} MiB were read in all, "
        hits = "" if start.hit_rate is None else f", {start.hit_rate:.2f} of the lookups that their list stands for"
        logger.info(
            "%s: ready after %.1f s at %s: %s%s rows are in DRAM%s",
            model.name,
            start.seconds,
            mount.view.current.name,
            came,
            f"{start.dram_rows:,}",
            hits,
        )

    def all(self) -> Mapping[str, Start]:
        """Returns the starts by name of the model."""
        return self._starts


def process_began(pid: str = "self") -> float:
    """Returns when a process was started, as of time.monotonic(); now where the system does not tell."""
    now = time.monotonic()
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - age if age >= 0 and ticks > 0 else now
