"""Says how long lookups have waited for the disk lately, from counts that are looked at every few seconds."""

from __future__ import annotations

import threading
from collections import deque

#: Seconds over which the mean is taken.
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
        """Returns how long a lookup that read waited on average; None with too few of them."""
        with self._lock:
            if len(self._looks) < 2:
                return None
            (_, reads, read_ns), (_, reads_before, ns_before) = self._looks[-1], self._looks[0]
        count = reads - reads_before
        return (read_ns - ns_before) / count / 1e6 if count >= _FEWEST_READS else None
