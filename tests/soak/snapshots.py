"""Keeps the snapshots of a soak: one is served, some can be restored, and readers pin the one that they began with.

It keeps the promise that a store asks of its owner: an overlay is discarded or merged only when no pinned snapshot
needs it otherwise.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from benchmarks.planted_rows import PlantedDelta, PlantedState


class Stopped(Exception):  # noqa: N818
    """Raised when the run ended while a thread waited."""


@dataclass(eq=False)
class Snapshot:
    """State of the tables at one snapshot, and the deltas that lead to it from the base."""

    state: PlantedState
    #: The deltas by overlay number, oldest first.
    chain: dict[int, PlantedDelta]
    #: Every overlay that ever led here, including those that were merged since: they may stay in a mask.
    mask: int
    pins: int = 0


@dataclass
class Snapshots:
    """Hands out snapshots.

    Thread-safe for one writer and many readers.
    """

    served: Snapshot
    kept: list[Snapshot] = field(default_factory=list)  # oldest first; the served one is among them
    halted: bool = False
    stopped: bool = False
    _moved: threading.Condition = field(default_factory=threading.Condition)

    def pin(self) -> Snapshot:
        """Pins and returns the served snapshot, which stays readable until `unpin`.

        Waits while the store is being reopened.
        """
        with self._moved:
            self._moved.wait_for(lambda: self.stopped or not self.halted)
            if self.stopped:
                raise Stopped
            self.served.pins += 1
            return self.served

    def unpin(self, snapshot: Snapshot) -> None:
        """Releases a pinned snapshot."""
        with self._moved:
            snapshot.pins -= 1
            self._moved.notify_all()

    def serve(self, snapshot: Snapshot) -> None:
        """Makes this the snapshot that the next reader gets."""
        with self._moved:
            self.served = snapshot
            if snapshot not in self.kept:
                self.kept.append(snapshot)

    def drop(self, gone: list[Snapshot]) -> None:
        """Removes snapshots that can no longer be restored; returns when no reader has them pinned."""
        with self._moved:
            assert self.served not in gone
            self.kept = [snapshot for snapshot in self.kept if snapshot not in gone]
            self._moved.wait_for(lambda: self.stopped or all(snapshot.pins == 0 for snapshot in gone))
            if self.stopped:
                raise Stopped

    def halt(self) -> None:
        """Stops readers from beginning; returns when none has a snapshot pinned."""
        with self._moved:
            self.halted = True
            self._moved.wait_for(lambda: self.stopped or all(snapshot.pins == 0 for snapshot in self.kept))
            if self.stopped:
                raise Stopped

    def go_on(self) -> None:
        """Lets readers begin again."""
        with self._moved:
            self.halted = False
            self._moved.notify_all()

    def stop(self) -> None:
        """Ends every wait."""
        with self._moved:
            self.stopped = True
            self._moved.notify_all()
