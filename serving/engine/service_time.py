"""Estimates how long the waiting rows will take, from the batches that were answered last."""

from __future__ import annotations

# The weight of the newest batch: about the last twenty batches decide. The estimate follows a change of load soon, and
# one slow batch hardly changes it.
_NEWEST = 0.1


class ServiceTime:
    """Keeps a moving average of the time per row. Thread-safe; two batches that end at once may count as one."""

    def __init__(self) -> None:
        self._row_ns = 0.0

    def worked(self, rows: int, ns: int) -> None:
        """Records that a session worked on a batch of `rows` rows for `ns` nanoseconds."""
        row_ns = ns / max(1, rows)
        known = self._row_ns
        self._row_ns = known + _NEWEST * (row_ns - known) if known else row_ns

    def wait_ns(self, rows: int, sessions: int) -> int:
        """Returns how many nanoseconds `sessions` sessions will work on `rows` rows; 0 before the first batch."""
        return int(rows * self._row_ns / max(1, sessions))
