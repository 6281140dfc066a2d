"""Load generators that others wrote, and what they measure: each runs in a process of its own, in a closed loop."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import PeerMissingError
from storage.errors import EmberlineError


@dataclass(frozen=True)
class Figures:
    """The figures of one measurement."""

    #: Good answers; none was of another kind.
    answers: int
    #: Good answers a second.
    requests: float
    #: Median latency in milliseconds.
    p50_ms: float
    #: 99th percentile of the latency in milliseconds.
    p99_ms: float


class BadAnswersError(EmberlineError):
    """A server gave other answers than good ones, so that its figures mean nothing."""


def program(name: str, package: str) -> Path:
    """Returns a program's path. Raises PeerMissingError that names the Debian package."""
    found = shutil.which(name)
    if found is None:
        raise PeerMissingError(f"no program {name}; apt-get install {package}")
    return Path(found)
