"""The times of the rows that training has used since it last published, for what is published next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storage.checkpoint.event_times import EventTimes

# Times that are kept one by one before they are summarised.
_BUFFERED = 65_536


@dataclass
class TrainedTimes:
    """Summaries of the times of rows, by `training.time_column`."""

    #: Of the rows since the last snapshot was published.
    recent: EventTimes | None = None
    #: Of the rows before those, since the last version.
    before: EventTimes | None = None
    _buffer: list[np.ndarray[Any, Any]] = field(default_factory=list)
    _buffered: int = 0

    def add(self, times_ms: np.ndarray[Any, Any] | None) -> None:
        """Takes the times of rows that were trained on, (N,) int64 in milliseconds since 1970; None: not known."""
        if times_ms is None or not len(times_ms):
            return
        self._buffer.append(times_ms)
        self._buffered += len(times_ms)
        if self._buffered >= _BUFFERED:
            self._fold()

    def since_snapshot(self) -> EventTimes | None:
        """Returns the times of the rows since the last snapshot; None without any."""
        self._fold()
        return self.recent

    def since_version(self) -> EventTimes | None:
        """Returns the times of the rows since the last version; None without any."""
        return _joined((self.before, self.since_snapshot()))

    def published(self, *, version: bool) -> None:
        """Begins anew behind a snapshot that was prepared. version: a version is among what is written."""
        self.before, self.recent = None if version else self.since_version(), None

    def to_json_value(self) -> dict[str, Any]:
        """Returns the summaries as JSON values; `from_json_value` reads them."""
        self._fold()
        return {"recent": as_json(self.recent), "before": as_json(self.before)}

    @classmethod
    def from_json_value(cls, value: dict[str, Any]) -> TrainedTimes:
        """Reads what `to_json_value` gave; an older commit has nothing."""
        return cls(event_times(value.get("recent")), event_times(value.get("before")))

    @classmethod
    def joined(cls, several: Iterable[dict[str, Any]]) -> TrainedTimes:
        """Returns those of several ranks, as JSON values, together."""
        parts = [cls.from_json_value(value) for value in several]
        return cls(_joined(part.recent for part in parts), _joined(part.before for part in parts))

    def _fold(self) -> None:
        if self._buffer:
            self.recent = _joined((self.recent, EventTimes.of(np.concatenate(self._buffer))))
            self._buffer, self._buffered = [], 0


def as_json(part: EventTimes | None) -> dict[str, Any] | None:
    """Returns a summary as JSON values; `event_times` reads them."""
    return None if part is None else part.model_dump(mode="json")


def event_times(value: dict[str, Any] | None) -> EventTimes | None:
    """Reads a summary that was written as JSON values."""
    if value is None:
        return None
    return EventTimes(**{**value, "quantiles_unix_ms": tuple(value["quantiles_unix_ms"])})


def _joined(parts: Iterable[EventTimes | None]) -> EventTimes | None:
    found = None
    for part in parts:
        if part is not None:
            found = part if found is None else found.joined(part)
    return found
