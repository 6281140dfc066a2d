"""Counts what became of requests, by the second in which they were due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.histogram import Histogram

#: Different texts of errors that are kept; further ones count under OTHER_ERRORS.
MOST_ERRORS = 20
OTHER_ERRORS = "other errors"
_LONGEST_ERROR = 300
_NUMBERS = ("waited", "failed", "unanswered", "answered")


@dataclass
class SecondCounts:
    """Counts the requests that were due in one second of a phase."""

    #: Latency of good answers, from when each request was due. Requests without an answer count with the time that
    #: they had waited when the phase was closed.
    latency: Histogram = field(default_factory=Histogram)
    #: By how much the generator itself sent too late, where it had a free connection in time.
    lag: Histogram = field(default_factory=Histogram)
    #: Requests that found no free connection when they were due.
    waited: int = 0
    failed: int = 0
    #: Requests that had no answer, or were not sent yet, when the phase was closed.
    unanswered: int = 0
    #: Good answers that came in this second, whenever they were due.
    answered: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def add_error(self, text: str, count: int = 1) -> None:
        """Counts a failure by its text."""
        text = text[:_LONGEST_ERROR]
        if text not in self.errors and len(self.errors) >= MOST_ERRORS:
            text = OTHER_ERRORS
        self.errors[text] = self.errors.get(text, 0) + count

    def merge(self, other: SecondCounts) -> None:
        """Adds what another process, or another report of the same second, counted."""
        self.latency.merge(other.latency)
        self.lag.merge(other.lag)
        self.waited += other.waited
        self.failed += other.failed
        self.unanswered += other.unanswered
        self.answered += other.answered
        for text, count in other.errors.items():
            self.add_error(text, count)

    def to_json_value(self) -> dict[str, Any]:
        """Returns what `from_json_value` reads."""
        return {
            "latency": self.latency.to_json_value(),
            "lag": self.lag.to_json_value(),
            **{name: getattr(self, name) for name in _NUMBERS},
            "errors": self.errors,
        }

    @classmethod
    def from_json_value(cls, content: Mapping[str, Any]) -> SecondCounts:
        """Returns the counts that `to_json_value` described."""
        waited, failed, unanswered, answered = (int(content[name]) for name in _NUMBERS)
        return cls(
            Histogram.from_json_value(content["latency"]),
            Histogram.from_json_value(content["lag"]),
            waited,
            failed,
            unanswered,
            answered,
            dict(content["errors"]),
        )
