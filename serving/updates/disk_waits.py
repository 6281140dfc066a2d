"""Says how long lookups have waited for the disk lately, from counts that are looked at every few seconds."""

from __future__ import annotations

import threading
from collections import deque

from pydantic import JsonValue

#: Lookups that are older, in seconds, say nothing about now.
WINDOW_S = 60.0
#: A disk is slow where the mean wait is longer, in milliseconds. The alert EmberlineDiskSlow has the same limit.
SLOW_MS = 50.0
# With fewer lookups that read, the mean says nothing. Looks that are kept, and seconds between two of them.
_FEWEST_READS, _MOST_LOOKS, _LEAST_S = 20, 128, 0.5


class DiskWaits:
    """Keeps the counts of one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # When, lookups that read by then, and the nanoseconds that they waited.
        self._looks: deque[tuple[float, int, int]] = deque(maxlen=_MOST_LOOKS)
        # Since when the disk is slow, as the time of day, and when that was last known, as `now`.
        self._slow_since: int | None = None
        self._known_at = 0.0

    def note(self, now: float, reads: int, read_ns: int, unix_ms: float) -> None:
        """Takes counts since the store was opened. Smaller ones than before begin anew.

        now: of `time.monotonic`. unix_ms: the same as the time of day.
        """
        with self._lock:
            if self._looks and reads < self._looks[-1][1]:
                self._looks.clear()
                self._slow_since = None
            if self._looks and now - self._looks[-1][0] < _LEAST_S:
                return
            self._looks.append((now, reads, read_ns))
            while len(self._looks) > 2 and now - self._looks[1][0] >= WINDOW_S:
                self._looks.popleft()
            mean_ms = self._mean_ms()
            if mean_ms is not None:
                self._slow_since = None if mean_ms <= SLOW_MS else self._slow_since or int(unix_ms)
                self._known_at = now
            elif now - self._known_at > WINDOW_S:  # with too few lookups, what was known holds for a while
                self._slow_since = None

    def to_json_value(self) -> dict[str, JsonValue]:
        """Returns how long the last lookups that read waited on average, and since when that is slow, for reports.

        Both are None with too few such lookups. A slow disk brings few of them, so those before it became slow are not
        taken along.
        """
        with self._lock:
            mean_ms = self._mean_ms()
            return {"disk_wait_ms": mean_ms, "disk_slow_since_unix_ms": None if mean_ms is None else self._slow_since}

    def _mean_ms(self) -> float | None:
        for _, reads, read_ns in reversed(self._looks):
            count = self._looks[-1][1] - reads
            if count >= _FEWEST_READS:
                return (self._looks[-1][2] - read_ns) / count / 1e6
        return None
