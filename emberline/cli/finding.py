"""A line of `emberline doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    value: str
    #: The action that would improve it, empty when there is nothing to do.
    advice: str = ""
