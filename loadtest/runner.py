"""Runs a load test with one kind of request: a profile of phases, or a search for a rate and a hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.drivers import Watch
from loadtest.figures import latency_figures, total
from loadtest.phases import Phase
from loadtest.records import PhaseRecord
from loadtest.search import (
    FAILED,
    HOLD_PARTS,
    KEPT_UP,
    LEAST_PART_ANSWERS,
    LEAST_PART_S,
    Found,
    Step,
    find_rate,
    p99_of,
)

#: Seconds that the last answers of a phase may take: as long as a request waits for one.
DRAIN_S = 30.0
# The same for a measurement of a search, of which most show only that a rate is too high.
_SEARCH_DRAIN_S = 2.0
# Share of late requests, of all that it would send, with which a measurement is over: more than twice what the p99
# allows. A piece of a confirmation goes on for longer, because a disturbance of some seconds is a part of its p99. A
# hold is over when its p99 cannot be under the bound any more.
_LATE_SHARE = {"search": 0.02, "confirm": 0.2, "hold": 0.01}
# A measurement of a search is made longer until it has so many requests, but not for that beyond _LONGEST_STEP_S.
_STEP_REQUESTS = 1000
_LONGEST_STEP_S = 60.0
# Seconds at the begin of each measurement that a search leaves out, while connections open and caches settle.
_SETTLING_S = 1


_TITLES = {"search": "trying", "confirm": "confirming", "hold": "holding"}


class Drivers(Protocol):
    """Sends the requests: locust processes, or a program that others wrote."""

    def run(self, phase: Phase, *, seed: int | None, drain_s: float, watch: Watch) -> PhaseRecord:
        """Sends a phase and returns what was measured; Ctrl-C or a fault of its own ends it, and the record says so."""
        ...

    def note(self) -> str:
        """Returns what a reader has to know of figures from there; "" for nothing."""
        ...


@dataclass(frozen=True)
class Plan:
    """Describes the whole load."""

    phases: Sequence[Phase] = ()
    #: Bound of the p99 of a search, in milliseconds; None for a profile of phases.
    bound_ms: float | None = None
    #: The rate with which a search begins, and the seconds of one of its measurements.
    first_rate: float = 100.0
    step_s: float = 5.0
    #: Seconds for which the rate that was found is held.
    hold_s: float = 0.0
    #: Seed of random gaps between requests; None for equal gaps.
    gaps: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the test takes; of a search, about."""
        return sum(phase.seconds for phase in self.phases) if self.bound_ms is None else 30 * self.step_s + self.hold_s

    @property
    def searched_s(self) -> tuple[float, ...]:
        """Seconds of a measurement of a search, and of its hold where there is one; nothing for a profile."""
        return () if self.bound_ms is None else (self.step_s, *((self.hold_s,) if self.hold_s else ()))


class _Broken(Exception):  # noqa: N818 - not an error of what is tested
    """The generator has ended."""


# Called while a phase runs: its title among all, and what was measured so far.
Show = Callable[[str, PhaseRecord], None]


@dataclass
class KindRun:
    """Holds what was measured with one kind of request."""

    kind: str
    records: list[PhaseRecord] = field(default_factory=list)
    found: Found | None = None
    interrupted: bool = False
    #: Why the generator ended; "" where it did not.
    broken: str = ""
    #: What a reader has to know of the generator.
    note: str = ""

    @property
    def began(self) -> float:
        """When the first phase began, time.monotonic."""
        return self.records[0].began if self.records else 0.0

    def judged(self) -> list[PhaseRecord]:
        """Returns the phases that the figures are about: all of a profile; of a search, the hold or what came last."""
        if self.found is None or not self.records:
            return self.records
        return self.records[self.found.place :][:1]

    def figures(self) -> dict[str, Any]:
        """Returns the figures of the whole run; of a search, those of the hold or of its last measurement."""
        judged, skip = self.judged(), 0 if self.found is None else _SETTLING_S
        counts = total(record.counts(skip) for record in judged)
        seconds = sum(max(0.0, record.lasted - record.left_out(skip)) for record in judged)
        figures = latency_figures(counts, seconds, sum(record.answered(skip) for record in judged))
        # What failed counts from the first second on.
        whole = total(record.counts() for record in judged)
        return {**figures, "failures": whole.failed, "unanswered": whole.unanswered}

    def over_time(self) -> list[dict[str, Any]]:
        """Returns the figures by second, from the begin of the first phase."""
        entries = []
        for record in self.records:
            begin = record.began - self.began
            rates = record.phase.rate
            for entry in record.over_time():
                seconds = min(entry["seconds"], record.lasted - entry["second"])
                if seconds > 0:  # the last one may be cut short
                    entry["requests_per_second"] *= entry["seconds"] / seconds
                elif not entry["requests"]:
                    continue  # only answers to earlier requests came then
                share = min(1.0, entry["second"] / record.phase.seconds)
                offered = None if rates is None else rates[0] + (rates[1] - rates[0]) * share
                entries.append({**entry, "second": begin + entry["second"], "offered": offered})
        return entries

    def notes(self) -> list[str]:
        """Returns what a reader has to know of these figures, in whole sentences."""
        notes = [self.note] if self.note else []
        notes += [note for record in self.judged() for note in record.generator_notes()]
        counts = total(record.counts() for record in self.judged())
        if counts.unanswered:
            notes.append(
                f"{counts.unanswered:,} requests had no answer when the test ended. They count in the percentiles with "
                "the time that they had waited, so the true ones are higher."
            )
        if self.interrupted:
            notes.append("The test was interrupted; the figures are those of what had been measured.")
        if self.broken:
            notes.append("The load generator failed; the figures are those of what had been measured.")
        return notes


def run_plan(kind: str, drivers: Drivers, plan: Plan, show: Show) -> KindRun:
    """Runs a plan. Ctrl-C ends it, as does a fault of the generator, and the result has what was measured."""
    run = KindRun(kind, note=drivers.note())
    try:
        if plan.bound_ms is None:
            for number, phase in enumerate(plan.phases, 1):
                title = phase.title if len(plan.phases) == 1 else f"{phase.title} ({number} of {len(plan.phases)})"
                _phase(run, drivers, plan, phase, DRAIN_S, _shown(show, title))
        else:
            _search(run, drivers, plan, plan.bound_ms, show)
    except KeyboardInterrupt:
        run.interrupted = True
    except _Broken as broken:
        run.broken = str(broken)
    return run


def _shown(show: Show, title: str) -> Watch:
    """Returns what shows a phase and never ends it."""

    def watch(record: PhaseRecord) -> bool:
        show(title, record)
        return False

    return watch


def _phase(run: KindRun, drivers: Drivers, plan: Plan, phase: Phase, drain_s: float, watch: Watch) -> PhaseRecord:
    record = drivers.run(phase, seed=plan.gaps, drain_s=drain_s, watch=watch)
    run.records.append(record)
    _check(record)
    return record


def _check(record: PhaseRecord) -> None:
    if record.broken:
        raise _Broken(record.broken)
    if record.interrupted:
        raise KeyboardInterrupt


def _search(run: KindRun, drivers: Drivers, plan: Plan, bound_ms: float, show: Show) -> None:
    found = run.found = Found(bound_ms)

    def measure(rate: float, seconds: float, purpose: str) -> Step:
        if purpose != "hold":
            seconds = max(seconds, min(_STEP_REQUESTS / rate, _LONGEST_STEP_S))
        seconds += _SETTLING_S
        title = f"{_TITLES[purpose]} {rate:.4g}/s"

        def watch(record: PhaseRecord) -> bool:
            show(title, record)
            counts = record.counts(_SETTLING_S)
            is_late = counts.latency.over(bound_ms) > _LATE_SHARE[purpose] * rate * seconds
            return is_late or counts.failed > FAILED * rate * seconds

        phase = Phase(seconds, (rate, rate))
        record = _phase(run, drivers, plan, phase, DRAIN_S if purpose == "hold" else _SEARCH_DRAIN_S, watch)
        return _step(record, rate, bound_ms, purpose)

    find_rate(found, measure, first=plan.first_rate, step_s=plan.step_s, hold_s=plan.hold_s)


def _step(record: PhaseRecord, rate: float, bound_ms: float, purpose: str) -> Step:
    figures = record.figures(_SETTLING_S)
    p99, failed = figures["p99_ms"], figures["failures"] / max(1, figures["requests"])
    answered = figures["requests_per_second"]
    is_kept_up = answered >= KEPT_UP * rate
    if math.isnan(p99):
        why = "no request was answered"
    elif failed > FAILED:
        why = f"{failed:.2%} of the requests failed"
    elif p99 > bound_ms:
        why = f"p99 {p99:.2f} ms"
    elif not is_kept_up:
        why = f"{answered:.4g} answers a second"
    else:
        why = ""
    latency = record.counts(_SETTLING_S).latency
    parts = record.parts(HOLD_PARTS, LEAST_PART_S, _SETTLING_S) if purpose == "hold" else []
    can_compare = parts and min(part.total for part in parts) >= LEAST_PART_ANSWERS
    error = p99_of(parts)[1] if can_compare else math.nan
    p50, seconds = figures["p50_ms"], max(0.0, record.lasted - record.left_out(_SETTLING_S))
    return Step(rate, seconds, p99, why, purpose, answered, p50, is_kept_up, failed, latency, error)
