"""Who looks into a card's replica at this moment: how a publisher learns that nobody holds what it took away.

A lane is inside from before it puts a lookup on its stream until it has waited for it. Marks and turns are plain
attributes: the GIL orders the writes of one thread before the reads of another, as in `storage.tiers.overlays`.
"""

from __future__ import annotations

import threading
import time
import weakref


class Turn:
    """Of one lane. inside: between `begin` and `end`. over: how often it has come out."""

    def __init__(self) -> None:
        self.inside = False
        self.over = 0

    def begin(self) -> None:
        """Before anything is read that says where rows lie."""
        self.inside = True

    def end(self) -> None:
        """When nothing of it is on a stream any more."""
        self.over += 1
        self.inside = False


class Turns:
    """All lanes of one replica. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: weakref.WeakSet[Turn] = weakref.WeakSet()

    def new(self) -> Turn:
        """For one lane; forgotten with it."""
        turn = Turn()
        with self._lock:
            self._turns.add(turn)
        return turn

    def wait(self) -> None:
        """Until every lane that is inside now has come out once. Lanes never wait for whoever calls this."""
        with self._lock:
            inside = [(turn, turn.over) for turn in self._turns if turn.inside]
        for turn, over in inside:
            while turn.inside and turn.over == over:
                time.sleep(20e-6)
