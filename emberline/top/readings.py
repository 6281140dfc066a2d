"""Reads a server's metrics page, and says what happened between two readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

# Labels of a sample, as pairs.
Series = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Reading:
    """Holds the samples of a page, by name."""

    #: When it was read, as of time.monotonic().
    at_s: float
    samples: Mapping[str, Mapping[Series, float]] = field(repr=False)

    @staticmethod
    def parse(page: str, at_s: float) -> Reading:
        """Reads a page in Prometheus' text format. Raises ValueError."""
        samples: dict[str, dict[Series, float]] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return Reading(at_s, samples)

    def series(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yields the labels and the value of each sample of a name that has these labels."""
        wanted = frozenset(labels.items())
        for series, value in self.samples.get(name, {}).items():
            if wanted <= series:
                yield dict(series), value

    def total(self, name: str, **labels: str) -> float | None:
        """Returns the sum of these samples, None where there are none."""
        values = [value for _, value in self.series(name, **labels)]
        return sum(values) if values else None

    def values_of(self, name: str, label: str) -> list[str]:
        """Returns the values of a label, in their order on the page."""
        return list(dict.fromkeys(of[label] for of, _ in self.series(name) if label in of))


@dataclass(frozen=True)
class Window:
    """Holds two readings, one after the other. `before` is None where there is one alone."""

    before: Reading | None
    now: Reading

    @property
    def seconds(self) -> float | None:
        """The time between them."""
        return None if self.before is None else self.now.at_s - self.before.at_s

    def increase(self, name: str, **labels: str) -> float:
        """Returns by how much counters grew. One that is smaller than before began anew: the server restarted."""
        earlier = {} if self.before is None else self.before.samples.get(name, {})
        wanted = frozenset(labels.items())
        grown = 0.0
        for series, value in self.now.samples.get(name, {}).items():
            if wanted <= series:
                old = earlier.get(series, 0.0)
                grown += value - old if value >= old else value
        return grown

    def rate(self, name: str, **labels: str) -> float | None:
        """Returns the increase a second; None without an earlier reading."""
        seconds = self.seconds
        return None if not seconds else self.increase(name, **labels) / seconds

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """Returns a quantile of a histogram, interpolated within its bucket; None where nothing was counted."""
        ends = sorted({of["le"] for of, _ in self.now.series(f"{name}_bucket", **labels)}, key=float)
        counts = [self.increase(f"{name}_bucket", **labels, le=end) for end in ends]
        if self.before is None or not counts or not counts[-1]:
            return None
        wanted, low, below = share * counts[-1], 0.0, 0.0
        for end, count in zip(ends, counts, strict=True):
            high = float(end)
            if count >= wanted:
                if high == float("inf"):
                    return low
                return low + (high - low) * ((wanted - below) / (count - below) if count > below else 1.0)
            low, below = high, count
        return low
