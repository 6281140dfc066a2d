"""Says how long lookups have waited for the disk lately, from counts that are looked at every few seconds."""

from __future__ import annotations

import threading
from collections import deque

#: Lookups that are older, in seconds, say nothing about now.
WINDOW_S = 60.0
# With fewer lookups that read, the mean says nothing. Looks that are kept, and seconds between two of them.
_FEWEST_READS, _MOST_LOOKS, _LEAST_S = 20, 128, 0.5


class DiskWaits:
    """Keeps the counts of one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # When, lookups that read by then, and the nanoseconds that they waited.
        self._looks: deque[tuple[float, int, int]] = deque(maxlen=_MOST_LOOKS)

    def note(self, now: float, reads: int, read_ns: int) -> None:
        """Takes counts since the store was opened. now: of `time.monotonic`. Smaller ones than before begin anew."""
        with self._lock:
            if self._looks and reads < self._looks[-1][1]:
                self._looks.clear()
            if self._looks and now - self._looks[-1][0] < _LEAST_S:
                return
            self._looks.append((now, reads, read_ns))
            while len(self._looks) > 2 and now - self._looks[1][0] >= WINDOW_S:
                self._looks.popleft()

    @property
    def mean_ms(self) -> float | None:
        """Returns how long the last lookups that read waited on average; None with too few of them.

        A slow disk brings few of them, so those before it became slow are not taken along.
        """
        with self._lock:
            looks = list(self._looks)
        for _, reads, read_ns in reversed(looks):
            count = looks[-1][1] - reads
            if count >= _FEWEST_READS:
                return (looks[-1][2] - read_ns) / count / 1e6
        return None
