"""Describes a load as phases: a rate that is constant or changes evenly, or a number of users, for some seconds.

A profile is written as phases with commas between them:

    500                       one rate
    100,200,400               steps
    100..1000@60s             a ramp
    200@30s,1000@5s,200@30s   a spike
    500@8h                    a soak test
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Phases of a profile at most.
MOST_PHASES = 100
#: Requests a second at most; no generator in Python comes near it.
MOST_RATE = 1_000_000.0
MOST_USERS = 10_000
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile(rf"({_NUMBER})([smh]?)")
_PHASE = re.compile(rf"({_NUMBER})(?:\.\.({_NUMBER}))?(?:@(.+))?")


@dataclass(frozen=True)
class Phase:
    """A part of a load test. Either a rate is offered (open loop), or users send one request after the other."""

    seconds: float
    #: Requests a second at its begin and at its end; None in a closed loop.
    rate: tuple[float, float] | None = None
    #: Users of a closed loop.
    users: int = 0

    @property
    def title(self) -> str:
        """The phase in words."""
        if self.rate is None:
            return f"{self.users:,} {'user' if self.users == 1 else 'users'}"
        begin, end = (f"{each:,.0f}" if each >= 1000 else f"{each:.4g}" for each in self.rate)
        return f"{begin}/s" if begin == end else f"{begin} to {end}/s"


def parse_duration(text: str) -> float:
    """Returns seconds: a number with s, m or h after it, or with nothing for seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"expected a length of time such as 30s, 5m or 2h, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def parse_rates(text: str, seconds: float) -> list[Phase]:
    """Returns the phases of a profile of rates. seconds: of phases that name no length. Raises ValueError."""
    phases = []
    for begin, end, length in _parts(text, seconds, "100, 100,200,400, 100..1000@60s or 200@30s,1000@5s"):
        rates = (begin, begin if end is None else end)
        if not 0 < max(rates) <= MOST_RATE or min(rates) <= 0:
            raise ValueError(f"expected rates above 0 and up to {MOST_RATE:,.0f} a second, got {text!r}")
        if sum(rates) / 2 * length < 1:
            raise ValueError(f"expected a request in each phase at least, got {begin:g} a second for {length:g} s")
        phases.append(Phase(length, rates))
    return phases


def parse_users(text: str, seconds: float) -> list[Phase]:
    """Returns the phases of a profile of users. seconds: of phases that name no length. Raises ValueError."""
    phases = []
    for users, end, length in _parts(text, seconds, "4, 1,4,16 or 4@30s,64@10s"):
        if end is not None or users != int(users) or not 1 <= users <= MOST_USERS:
            raise ValueError(f"expected whole numbers of users from 1 to {MOST_USERS:,}, got {text!r}")
        phases.append(Phase(length, users=int(users)))
    return phases


def _parts(text: str, seconds: float, example: str) -> list[tuple[float, float | None, float]]:
    parts = []
    for part in text.split(","):
        found = _PHASE.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"expected a profile such as {example}; got {part!r}")
        length = seconds if found[3] is None else parse_duration(found[3])
        parts.append((float(found[1]), None if found[2] is None else float(found[2]), length))
    if len(parts) > MOST_PHASES:
        raise ValueError(f"expected at most {MOST_PHASES} phases, got {len(parts)}")
    return parts
