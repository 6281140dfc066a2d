"""Says whether somebody observes requests, so that sessions record the stages of their batches."""

from __future__ import annotations

import threading


class Watchers:
    """Counts who observes requests in this process. Thread-safe; any thread may read `is_on` at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        #: Whether anybody does.
        self.is_on = False

    def add(self) -> None:
        """Counts one more."""
        with self._lock:
            self._count += 1
            self.is_on = True

    def remove(self) -> None:
        """Counts one fewer."""
        with self._lock:
            self._count -= 1
            self.is_on = self._count > 0


#: Of this process: sessions look here once a batch. Several servers in one process share it, which costs the others a
#: microsecond a batch.
WATCHERS = Watchers()
