"""Records what was measured in a phase, and judges whether the generator itself shows in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadtest.counts import SecondCounts
from loadtest.figures import latency_figures, over_time, total
from loadtest.histogram import Histogram
from loadtest.phases import Phase

#: Share of a core that a process of the generator may use before its own work shows in the figures.
BUSY = 0.85
#: Milliseconds by which a generator may send late before that shows, where it is a tenth of the latency or more.
LATE_MS = 0.5
_LATE_SHARE = 0.1
# Stretches of time that are kept; in longer phases, two become one.
_MOST_STRETCHES = 1200


@dataclass
class PhaseRecord:
    """The counts of a phase. began: time.monotonic, as the clock of all processes."""

    phase: Phase
    number: int
    began: float
    #: The counts of stretches of `width` seconds, by the second in which each begins.
    seconds: dict[int, SecondCounts] = field(default_factory=dict)
    width: int = 1
    #: How long it lasted: less than planned when it was ended early.
    lasted: float = 0.0
    #: Seconds of processor time, and of the clock, of each process of the generator.
    cpu: dict[int, float] = field(default_factory=dict)
    wall: dict[int, float] = field(default_factory=dict)
    interrupted: bool = False
    #: Why the generator ended before the phase did; "" otherwise.
    broken: str = ""

    def counts(self, skip: int = 0) -> SecondCounts:
        """Returns all counts but those of the stretches that end within the first `skip` seconds."""
        return total(each for second, each in self.seconds.items() if second >= self.left_out(skip))

    def parts(self, number: int, least_s: float, skip: int = 0) -> list[Histogram]:
        """Returns the latencies of so many equally long parts of the phase, without its first `skip` seconds.

        The list is empty where a part would take less than `least_s` seconds or have no answer, as with wrk2, which
        counts a phase as a whole.
        """
        begin = self.left_out(skip)
        length = (self.lasted - begin) / number
        if length < max(least_s, self.width):
            return []
        found = [Histogram() for _ in range(number)]
        for second, each in self.seconds.items():
            if second >= begin:
                found[min(int((second - begin) / length), number - 1)].merge(each.latency)
        return found if all(part.total for part in found) else []

    def answered(self, skip: int = 0) -> int:
        """Returns how many good answers came before the phase ended, without those of the first `skip` seconds.

        What a server that is too slow answers later is not among them: it is no rate that the server holds.
        """
        begin = self.left_out(skip)
        return sum(each.answered for second, each in self.seconds.items() if begin <= second < self.lasted)

    def merge(self, process: int, content: dict[str, Any]) -> None:
        """Adds a report of a process."""
        for second, each in content["seconds"].items():
            self.add(int(second), SecondCounts.from_json_value(each))
        self.cpu[process] = self.cpu.get(process, 0.0) + content["cpu_s"]
        self.wall[process] = self.wall.get(process, 0.0) + content["wall_s"]

    def add(self, second: int, counts: SecondCounts) -> None:
        """Adds counts of a second."""
        self.seconds.setdefault(second // self.width * self.width, SecondCounts()).merge(counts)
        if len(self.seconds) > _MOST_STRETCHES:
            finer, self.seconds, self.width = self.seconds, {}, 2 * self.width
            for begin, each in finer.items():
                self.seconds.setdefault(begin // self.width * self.width, SecondCounts()).merge(each)

    def latest(self, seconds: int) -> tuple[SecondCounts, int]:
        """Returns the counts of the last stretches, for a look at a phase that runs, and the seconds that they took.

        The last one of all is left out, because it is not over yet, unless there is no other.
        """
        last = max(self.seconds, default=0)
        begin = max(0, last - max(1, seconds // self.width) * self.width)
        if begin == last:
            return self.counts(), self.width
        return total(each for second, each in self.seconds.items() if begin <= second < last), last - begin

    @property
    def busiest(self) -> float:
        """The share of a core that the busiest process of the generator used."""
        return max((self.cpu[each] / self.wall[each] for each in self.cpu if self.wall[each] > 0), default=0.0)

    def figures(self, skip: int = 0) -> dict[str, Any]:
        """Returns the figures of the phase, without its first `skip` seconds."""
        counts, seconds = self.counts(skip), max(self.lasted - self.left_out(skip), 0.0)
        found: dict[str, Any] = latency_figures(counts, seconds, self.answered(skip))
        begin, end = self.phase.rate or (None, None)
        found.update(
            phase=self.phase.title,
            seconds=self.lasted,
            offered_begin=begin,
            offered_end=end,
            users=self.phase.users or None,
            waited=counts.waited,
            lag_p99_ms=counts.lag.quantile(0.99) if counts.lag.total else None,
            generator_cores=self.busiest,
            errors=counts.errors,
        )
        return found

    def over_time(self) -> list[dict[str, Any]]:
        """Returns the figures by second."""
        return over_time(self.seconds, self.width)

    def generator_notes(self) -> list[str]:
        """Returns what shows of the generator itself in these figures, in whole sentences."""
        notes = []
        counts = self.counts()
        if self.busiest > BUSY:
            notes.append(
                f"{self.phase.title}: a process of the generator used {self.busiest:.0%} of a core, so the figures "
                "include its own delays."
            )
        lag, latency = counts.lag.quantile(0.99), counts.latency.quantile(0.99)
        if counts.lag.total and counts.latency.total and lag > max(LATE_MS, _LATE_SHARE * latency):
            notes.append(
                f"{self.phase.title}: the generator sent 1% of the requests more than {lag:.2f} ms late although a "
                f"connection was free, which is {lag / latency:.0%} of the p99."
            )
        return notes

    def left_out(self, skip: int) -> int:
        """Returns the second in which the first stretch begins that does not end within `skip` seconds."""
        return skip // self.width * self.width
