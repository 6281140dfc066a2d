"""How long what waits will take: an estimate from the batches that were answered last."""

from __future__ import annotations

# The weight of the newest batch: some twenty of them decide. A change of load shows soon, one slow batch hardly.
_NEWEST = 0.1


class ServiceTime:
    """Any thread; two batches that end at the same moment may count as one."""

    def __init__(self) -> None:
        self._row_ns = 0.0

    def worked(self, rows: int, ns: int) -> None:
        """Notes a batch that a session worked on for so long."""
        row_ns = ns / max(1, rows)
        known = self._row_ns
        self._row_ns = known + _NEWEST * (row_ns - known) if known else row_ns

    def wait_ns(self, rows: int, sessions: int) -> int:
        """How long `sessions` will work on so many rows; 0 while nothing is known."""
        return int(rows * self._row_ns / max(1, sessions))
