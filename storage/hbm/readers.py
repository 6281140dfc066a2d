"""Tracks the sessions inside a GPU's replica, so that a publisher knows when none holds what it took away.

A session is inside from before it puts a lookup on its stream until it has waited for it. Marks and turns are plain
attributes: the GIL orders the writes of one thread before the reads of another, as in `storage.tiers.overlays`.
"""

from __future__ import annotations

import threading
import time
import weakref

from storage.errors import DeviceError

# A session is inside for as long as its lookup is on the GPU; one that is not out by then never will be.
_MOST_S = 30.0


class Turn:
    """Marks of one session: `inside` is true between `begin` and `end`, and `over` counts the times it has come out."""

    def __init__(self) -> None:
        self.inside = False
        self.over = 0

    def begin(self) -> None:
        """Enters; call it before reading anything that says where rows lie."""
        self.inside = True

    def end(self) -> None:
        """Leaves; call it when none of its work is on a stream any more."""
        self.over += 1
        self.inside = False


class Turns:
    """The turns of all sessions of one replica. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: weakref.WeakSet[Turn] = weakref.WeakSet()

    def new(self) -> Turn:
        """Creates a turn for one session; it is forgotten when the session drops it."""
        turn = Turn()
        with self._lock:
            self._turns.add(turn)
        return turn

    def wait(self, most_s: float = _MOST_S) -> None:
        """Waits until every session that is inside now has come out once, or is gone. No session waits for the caller.

        Raises DeviceError when one does not come out.
        """
        with self._lock:
            inside = [(weakref.ref(turn), turn.over) for turn in self._turns if turn.inside]
        deadline = time.monotonic() + most_s
        for reference, over in inside:
            while (turn := reference()) is not None and turn.inside and turn.over == over:
                del turn
                if time.monotonic() > deadline:
                    raise DeviceError(f"a lookup on the GPU has not ended for {most_s:g} s")
                time.sleep(20e-6)
