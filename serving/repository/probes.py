"""Tells load balancers whether the server takes requests, and remembers whether any of them asks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

# Load balancers and Kubernetes ask at least this often where nothing else is configured: every 30 s at the most.
_WITHIN_S = 90.0
# A script that waits for a server asks until it is ready, and then no more.
_REGULARLY = 2


class Probes:
    """Answers whether the server is ready. Thread-safe."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._asked: deque[float] = deque(maxlen=_REGULARLY)
        self._is_retiring = False

    def is_ready(self) -> bool:
        """Returns whether the server takes requests and is not about to stop."""
        return not self._is_retiring and self._is_ready()

    def answer(self) -> bool:
        """Returns the same to somebody who asks over the network, and remembers that they were told yes."""
        ready = self.is_ready()
        if ready:
            self._asked.append(time.monotonic())
        return ready

    @property
    def are_regular(self) -> bool:
        """Returns whether somebody keeps asking, who will notice that the server is no longer ready."""
        asked = list(self._asked)
        return len(asked) == _REGULARLY and time.monotonic() - asked[0] < _WITHIN_S

    def retire(self) -> None:
        """Is not ready from now on."""
        self._is_retiring = True
