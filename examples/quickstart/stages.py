"""Prints headings and times of the stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


class Stages:
    """Prints a heading for each stage and keeps its seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """Runs one stage: a heading before, its time after."""
        self.console.print(f"\n[bold]{len(self.seconds) + 1}. {name}[/bold]  {what}")
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began
        self.say(f"[dim]{self.seconds[name]:.1f} s[/dim]")

    def say(self, text: str) -> None:
        """Prints one line within a stage."""
        self.console.print(f"   {text}")
