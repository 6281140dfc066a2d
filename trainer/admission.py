"""Counts ids that have no row yet in a bounded amount of memory."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import ConfigError

#: The range of false rates that a filter can be made for.
LEAST_FALSE_RATE, MOST_FALSE_RATE = 1e-4, 0.5
#: The largest admit_after with a filter: its counters have 8 bits at most.
MOST_ADMIT_AFTER = 256


@dataclass(frozen=True)
class BloomAdmission:
    """A counting Bloom filter instead of an exact count of every id that waits for its row.

    expected_ids: the distinct ids that a table will ever see. false_rate: after so many ids, this share of new ids at
    most gets a row too early. Raises ConfigError for values out of range.
    """

    expected_ids: int
    false_rate: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.expected_ids <= 10**12:
            raise ConfigError(
                f"admission: expected_ids is {self.expected_ids}, expected 1 to 10^12", field="admission.expected_ids"
            )
        if not LEAST_FALSE_RATE <= self.false_rate <= MOST_FALSE_RATE:
            raise ConfigError(
                f"admission: false_rate is {self.false_rate}, expected {LEAST_FALSE_RATE} to {MOST_FALSE_RATE}",
                field="admission.false_rate",
            )

    def check(self, admit_after: int) -> None:
        """Raises ConfigError for a threshold that a filter cannot count to."""
        if not 2 <= admit_after <= MOST_ADMIT_AFTER:
            raise ConfigError(
                f"admit_after is {admit_after}, expected 2 to {MOST_ADMIT_AFTER} with a Bloom filter",
                field="admit_after",
            )
