"""Finds the highest rate whose p99 stays under a bound: doubles, halves the interval, confirms it, and holds it.

A confirmation lasts until its p99 is known to a few percent. A short one would pass where a lucky stretch lies under
the bound, and tell a p99 that nobody sees again. A hold lasts as long as the caller says, and finds what changes from
one minute to the next: a rate whose p99 is over the bound then, or comes and goes, is lowered and held again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import stdev
from typing import Any

from loadtest.histogram import Histogram, merged

#: Measurements of a search at most, and those of its confirmations.
MOST_STEPS, MOST_PIECES = 40, 90
LOWEST_RATE, HIGHEST_RATE = 1.0, 200_000.0
# The interval is narrow enough when its ends differ by so much.
_NARROW = 1.04
# A rate that is not confirmed is tried again at these shares of it: on a busy machine the search may be far too high.
_LOWERED = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1)
# A measurement over the bound is repeated, unless it was over it by this factor: a disturbance is no limit.
_FAR_OVER = 2.0
# A confirmation is made of pieces, each so much longer than a measurement of the search; so many at least and at most.
PIECE_TIMES = 2.0
FEWEST_PIECES, LONGEST_PIECES = 4, 15
#: A hold is compared in so many parts where each has so many seconds and answers. With fewer answers, their p99s differ
#: by chance.
HOLD_PARTS, LEAST_PART_S, LEAST_PART_ANSWERS = 10, 5, 2000
# No rate is lowered further than to this share because its p99 comes and goes: then that is how the machine is.
_LOWEST_UNSTEADY = 0.5
# The standard error, as a share of the p99 or of a bound far above it, with which a proof is exact enough.
_EXACT, _EXACT_OF_BOUND = 0.04, 0.02
# How many standard errors beyond the bound end it early.
_SURE = 2.0
#: Share of failed requests up to which a measurement counts.
FAILED = 0.001
#: Share of the offered rate that has to be answered.
KEPT_UP = 0.97


@dataclass(frozen=True)
class Step:
    """One measurement. why: what was wrong with it; "" if it stayed under the bound."""

    rate: float
    seconds: float
    p99_ms: float
    why: str = ""
    purpose: str = "search"
    #: Good answers a second.
    answered: float = math.nan
    p50_ms: float = math.nan
    #: Whether requests were answered at the rate at which they were sent.
    is_kept_up: bool = True
    #: Share of the requests that failed.
    failed: float = 0.0
    #: What it counted.
    latency: Histogram = field(default_factory=Histogram, repr=False, compare=False)
    #: Standard error of the p99 of a hold, by the differences between its parts; not a number for a short one.
    p99_error_ms: float = math.nan

    @property
    def is_good(self) -> bool:
        """Returns whether the rate was held under the bound."""
        return not self.why

    def to_json_value(self) -> dict[str, Any]:
        """Returns the step for a report."""
        return {
            "rate": self.rate,
            "seconds": self.seconds,
            "requests_per_second": self.answered,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "why": self.why,
            "purpose": self.purpose,
        }


@dataclass
class Found:
    """The result of a search. rate: None if no rate was found, and why says the reason."""

    bound_ms: float
    steps: list[Step] = field(default_factory=list)
    rate: float | None = None
    #: p99 of the hold, or without one of the confirmation, and its standard error.
    p99_ms: float = math.nan
    p99_error_ms: float = math.nan
    why: str = ""
    #: Seconds for which the rate was held; 0 when it was confirmed only.
    held_s: float = 0.0
    #: Whether the p99 is about the same in each part of the hold, or without one of the confirmation; None where a hold
    #: could not be compared.
    is_steady: bool | None = None
    #: Place among the steps of the one that the rate was found by.
    place: int = -1

    def to_json_value(self) -> dict[str, Any]:
        """Returns the result for a report."""
        return {
            "bound_ms": self.bound_ms,
            "rate": self.rate,
            "p99_ms": self.p99_ms,
            "p99_error_ms": self.p99_error_ms,
            "why": self.why,
            "held_s": self.held_s,
            "steady": self.is_steady,
            "steps": [step.to_json_value() for step in self.steps],
        }


# Measures a rate for some seconds; purpose is search, confirm or hold.
Measure = Callable[[float, float, str], Step]


class SearchEndedError(Exception):
    """No rate was found."""


def find_rate(found: Found, measure: Measure, *, first: float, step_s: float, hold_s: float = 0.0) -> None:
    """Searches, and fills `found` as it goes on, so that an interrupted search keeps its steps.

    first: the rate to begin with. step_s: seconds of a measurement. hold_s: seconds of the hold; 0 for none.
    """
    try:
        good, bad = _interval(found, measure, first, step_s)
        while bad / good > _NARROW:
            middle = math.sqrt(good * bad)
            if _is_good(found, measure, middle, step_s):
                good = middle
            else:
                bad = middle
        _prove(found, measure, good, step_s, hold_s)
    except SearchEndedError as ended:
        found.why = str(ended)


def _prove(found: Found, measure: Measure, good: float, step_s: float, hold_s: float) -> None:
    """Confirms and holds a rate, or the highest lower one for which that succeeds."""
    rates = [share * good for share in _LOWERED]
    while rates and (p99 := _confirmed(found, measure, rates[0], step_s)) is None:
        del rates[0]
    if not rates:
        raise SearchEndedError(
            f"no rate near {good:.4g}/s was confirmed: the p99 changes from one measurement to the next"
        )
    assert p99 is not None
    found.rate, (found.p99_ms, found.p99_error_ms) = rates[0], p99
    found.is_steady = found.p99_error_ms <= _exact_ms(found, found.p99_ms)
    if not hold_s:
        return
    # An interrupted first hold leaves what was confirmed.
    for rate in rates:  # a rate below one that is confirmed needs no confirmation
        if found.held_s and rate < _LOWEST_UNSTEADY * rates[0]:
            return
        step = _measured(found, measure, rate, hold_s, "hold")
        if not step.is_good:  # nor does a higher one count that was held in a lucky stretch
            found.rate, found.p99_ms, found.p99_error_ms, found.is_steady = None, math.nan, math.nan, None
            found.held_s, found.place = 0.0, -1
            found.why = f"{rate:.4g}/s was not held: {step.why}"
        elif math.isnan(step.p99_error_ms):
            if not found.held_s:  # too few answers to compare its parts, as any lower rate would have
                _take(found, is_steady=None)
            return
        elif step.p99_error_ms <= _exact_ms(found, step.p99_ms):
            _take(found, is_steady=True)
            return
        else:
            why = f"p99 {step.p99_ms:.2f} ms ± {step.p99_error_ms:.2f}, which comes and goes"
            found.steps[-1] = replace(step, why=why)
            if not found.held_s:
                _take(found, is_steady=False)
    if not found.held_s:
        raise SearchEndedError(found.why)


def _take(found: Found, *, is_steady: bool | None) -> None:
    """Takes the last measurement for what was found."""
    step, found.place = found.steps[-1], len(found.steps) - 1
    found.rate, found.p99_ms, found.p99_error_ms = step.rate, step.p99_ms, step.p99_error_ms
    found.held_s, found.is_steady, found.why = step.seconds, is_steady, ""


def _exact_ms(found: Found, p99_ms: float) -> float:
    """Returns the standard error up to which a p99 is known well."""
    return max(_EXACT * p99_ms, _EXACT_OF_BOUND * found.bound_ms)


def _interval(found: Found, measure: Measure, first: float, step_s: float) -> tuple[float, float]:
    """Returns a rate that is good and one above it that is not."""
    rate = first
    if _is_good(found, measure, rate, step_s):
        while _is_good(found, measure, min(2 * rate, HIGHEST_RATE), step_s):
            rate = min(2 * rate, HIGHEST_RATE)
            if rate >= HIGHEST_RATE:
                raise SearchEndedError(f"even {HIGHEST_RATE:,.0f}/s stay under the bound")
        return rate, 2 * rate
    while rate / 2 >= LOWEST_RATE:
        rate /= 2
        if _is_good(found, measure, rate, step_s):
            return rate, 2 * rate
    raise SearchEndedError(f"not even {rate:.3g}/s stay under the bound: {found.steps[-1].why}")


def _is_good(found: Found, measure: Measure, rate: float, step_s: float) -> bool:
    step = _measured(found, measure, rate, step_s, "search")
    if not step.is_good and step.p99_ms <= _FAR_OVER * found.bound_ms:
        step = _measured(found, measure, rate, step_s, "search")
    return step.is_good


def _confirmed(found: Found, measure: Measure, rate: float, step_s: float) -> tuple[float, float] | None:
    """Returns the p99 of a rate and its standard error; None where it is over the bound or the rate is not held."""
    pieces: list[Step] = []
    while True:
        pieces.append(_measured(found, measure, rate, PIECE_TIMES * step_s, "confirm"))
        if pieces[-1].failed > FAILED or not pieces[-1].latency.total:
            return None
        # One disturbance is no limit, and two are.
        if sum(not piece.is_kept_up for piece in pieces) > 1:
            return None
        if len(pieces) == 2 and not any(piece.is_good for piece in pieces):
            return None
        if len(pieces) < FEWEST_PIECES:
            continue
        p99, error = p99_of([piece.latency for piece in pieces])
        if p99 - _SURE * error > found.bound_ms:
            return None
        if error <= _exact_ms(found, p99) or len(pieces) >= LONGEST_PIECES:
            return (p99, error) if p99 <= found.bound_ms else None


def p99_of(pieces: Sequence[Histogram]) -> tuple[float, float]:
    """Returns the p99 of all pieces together, and its standard error by the differences between those of the pieces."""
    error = stdev(piece.quantile(0.99) for piece in pieces) / math.sqrt(len(pieces))
    return merged(pieces).quantile(0.99), error


def _measured(found: Found, measure: Measure, rate: float, seconds: float, purpose: str) -> Step:
    most, done = {"search": (MOST_STEPS, "found"), "confirm": (MOST_PIECES, "confirmed")}.get(purpose, (math.inf, ""))
    if sum(step.purpose == purpose for step in found.steps) >= most:
        raise SearchEndedError(f"no rate was {done} in {most} measurements")
    step = measure(rate, seconds, purpose)
    found.steps.append(step)
    return step
