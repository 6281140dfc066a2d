"""Conditions on figures under which a load test fails, such as p99>10ms, failed>0.1% or rate<500."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_METRICS = {
    "p50": "p50_ms",
    "p90": "p90_ms",
    "p99": "p99_ms",
    "p99.9": "p99_9_ms",
    "max": "max_ms",
    "failed": "failures",
    "unanswered": "unanswered",
    "rate": "requests_per_second",
    "hit_rate": "hit_rate",
}
_TIMES = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3}
_COUNTS = {"failed", "unanswered"}
_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_CONDITION = re.compile(r"([a-z0-9_.]+)\s*(>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+)?)\s*(%|us|ms|s|)")
EXAMPLES = "p99>10ms, failed>0.1%, rate<500"


@dataclass(frozen=True)
class Condition:
    """A condition under which a test fails."""

    text: str
    metric: str
    sign: str
    #: Milliseconds, requests a second, a count, or a share.
    bound: float
    is_share: bool = False

    def holds(self, figures: Mapping[str, Any]) -> bool:
        """Returns whether the test fails. A figure that is missing fails it too: it says nothing good."""
        value = figures.get(_METRICS[self.metric])
        if value is None or math.isnan(value):
            return True
        if self.is_share and self.metric in _COUNTS:
            value = value / max(1, figures["requests"])
        return bool(_OPERATORS[self.sign](value, self.bound))


def parse_condition(text: str) -> Condition:
    """Returns the condition. Raises ValueError naming what was expected."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected conditions such as {EXAMPLES}, got {text!r}")
    metric, sign, number, unit = found.groups()
    if metric not in _METRICS:
        raise ValueError(f"{text!r}: {metric!r} is none of the figures {', '.join(_METRICS)}")
    is_time = metric in ("p50", "p90", "p99", "p99.9", "max")
    is_share = unit == "%"
    units = _TIMES if is_time else ("",) if metric == "rate" else ("", "%")
    if unit not in units:
        raise ValueError(f"{text!r}: {metric} has no unit {unit!r}")
    bound = float(number) * (_TIMES[unit] if is_time else 0.01 if is_share else 1.0)
    return Condition(text.strip(), metric, sign, bound, is_share)
