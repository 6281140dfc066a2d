"""The snapshots of a soak: one is served, some can be gone back to, and readers pin the one that they began with.

It keeps the promise that a store asks of its owner: an overlay is discarded or merged only when no pinned snapshot
needs it otherwise.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from benchmarks.planted_rows import PlantedDelta, PlantedState


class Stopped(Exception):  # noqa: N818
    """The run ended while somebody waited."""


@dataclass(eq=False)
class Snapshot:
    """What the tables hold, and the deltas that lead there from the base, by overlay number, oldest first.

    mask: of every overlay that ever led here, those that were merged since too: they may stay in a mask.
    """

    state: PlantedState
    chain: dict[int, PlantedDelta]
    mask: int
    pins: int = 0


@dataclass
class Snapshots:
    """One writer, many readers."""

    served: Snapshot
    kept: list[Snapshot] = field(default_factory=list)  # oldest first; the served one is among them
    halted: bool = False
    stopped: bool = False
    _moved: threading.Condition = field(default_factory=threading.Condition)

    def pin(self) -> Snapshot:
        """The served snapshot, which stays readable until `unpin`. Waits while the store is being reopened."""
        with self._moved:
            self._moved.wait_for(lambda: self.stopped or not self.halted)
            if self.stopped:
                raise Stopped
            self.served.pins += 1
            return self.served

    def unpin(self, snapshot: Snapshot) -> None:
        """The reader is done with it."""
        with self._moved:
            snapshot.pins -= 1
            self._moved.notify_all()

    def serve(self, snapshot: Snapshot) -> None:
        """The next reader gets this one."""
        with self._moved:
            self.served = snapshot
            if snapshot not in self.kept:
                self.kept.append(snapshot)

    def drop(self, gone: list[Snapshot]) -> None:
        """Nobody can go back to these any more; returns when nobody reads them."""
        with self._moved:
            assert self.served not in gone
            self.kept = [snapshot for snapshot in self.kept if snapshot not in gone]
            self._moved.wait_for(lambda: self.stopped or all(snapshot.pins == 0 for snapshot in gone))
            if self.stopped:
                raise Stopped

    def halt(self) -> None:
        """Lets no reader begin; returns when none is inside."""
        with self._moved:
            self.halted = True
            self._moved.wait_for(lambda: self.stopped or all(snapshot.pins == 0 for snapshot in self.kept))
            if self.stopped:
                raise Stopped

    def go_on(self) -> None:
        """Readers may begin again."""
        with self._moved:
            self.halted = False
            self._moved.notify_all()

    def stop(self) -> None:
        """Ends everybody's wait."""
        with self._moved:
            self.stopped = True
            self._moved.notify_all()
