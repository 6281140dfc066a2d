"""Holds what a command found: as JSON, and as lines and tables for a terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from emberline.fitted_table import FittedTable


@dataclass
class View:
    """Holds a finding in both forms."""

    document: dict[str, Any]
    #: Lines and tables in their order.
    parts: list[str | FittedTable] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Prints the lines and tables."""
        for part in self.parts:
            console.print(part)
