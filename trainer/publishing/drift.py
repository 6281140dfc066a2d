"""Notices that the loss has risen since the last snapshot, so that what was learned since is published at once.

The loss of a batch is taken before its step, so on rows that the model has not seen: progressive validation. The mean
of the last rows is compared with the lowest one of as many rows since the last publish, by its relative rise, and by
the noise of batches, which is estimated from the differences between neighbours: a change of level is not in it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

# Standard errors that the rise must exceed. The lowest of many means is a low one by chance, and batches in a row are
# not quite independent.
_ERRORS = 6.0
#: A mean is taken over this many batches at least.
BATCHES_AT_LEAST = 16
# Of the newest difference in the estimate of the noise.
_WEIGHT = 0.01


class LossDrift:
    """Watches the losses of batches. rise: relative, that counts as drift. rows: that a mean is taken over."""

    def __init__(self, rise: float, rows: int) -> None:
        self._rise, self._rows = rise, rows
        # (loss, rows) of the batches since the last publish, the last `rows` rows.
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_rows = 0
        self._lowest: float | None = None
        self._last: float | None = None
        # The variance of the loss of a batch, and the number of differences that it was estimated from.
        self._noise, self._differences = 0.0, 0

    def add(self, loss: float, rows: int) -> None:
        """Takes the mean loss of a batch, before its step."""
        if self._last is not None:
            self._differences += 1
            weight = max(_WEIGHT, 1 / self._differences)
            self._noise += weight * ((loss - self._last) ** 2 / 2 - self._noise)
        self._last = loss
        self._recent.append((loss, rows))
        self._recent_rows += rows
        while self._recent_rows - self._recent[0][1] >= self._rows and len(self._recent) > BATCHES_AT_LEAST:
            self._recent_rows -= self._recent.popleft()[1]
        if self._is_full:
            self._lowest = min(self._mean(), math.inf if self._lowest is None else self._lowest)

    @property
    def risen(self) -> tuple[float, float] | None:
        """The lowest mean loss since the last publish and the one now, if it has risen; None otherwise."""
        if self._lowest is None or not self._is_full:
            return None
        now, error = self._mean(), math.sqrt(2 * self._noise / len(self._recent))
        has = now > self._lowest * (1.0 + self._rise) and now - self._lowest > _ERRORS * error
        return (self._lowest, now) if has else None

    def published(self) -> None:
        """Compares with the last rows from now on, and with those that come."""
        if self._is_full:
            self._lowest = self._mean()
        self._recent.clear()
        self._recent_rows = 0

    def to_json_value(self) -> dict[str, Any]:
        """Returns the state as JSON values, for a commit."""
        noise = {"lowest": self._lowest, "last": self._last, "noise": self._noise, "differences": self._differences}
        return {**noise, "recent": [list(entry) for entry in self._recent]}

    def restore(self, value: dict[str, Any]) -> None:
        """Continues with what `to_json_value` gave; an older commit has nothing."""
        self._lowest, self._last = value.get("lowest"), value.get("last")
        self._noise, self._differences = value.get("noise", 0.0), value.get("differences", 0)
        self._recent = deque((float(loss), int(rows)) for loss, rows in value.get("recent", ()))
        self._recent_rows = sum(rows for _, rows in self._recent)

    @property
    def _is_full(self) -> bool:
        return self._recent_rows >= self._rows and len(self._recent) >= BATCHES_AT_LEAST

    def _mean(self) -> float:
        return sum(loss * rows for loss, rows in self._recent) / self._recent_rows
