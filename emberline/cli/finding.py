"""A line of `emberline doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report. advice: what would make it better, empty when there is nothing to do."""

    name: str
    value: str
    advice: str = ""
