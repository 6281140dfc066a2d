"""Decides what a stream gets: colours, and progress bars that move.

Colours are for terminals. NO_COLOR, with any text, turns them off everywhere; FORCE_COLOR, with any text but 0, turns
them on elsewhere, such as in the log of a build. Bars are for terminals alone, since nothing else can redraw a line.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def is_terminal(stream: TextIO | None) -> bool:
    """Returns whether a stream is a terminal that can move its cursor."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # it is closed
        return False


def has_colours(stream: TextIO | None) -> bool:
    """Returns whether what is written to a stream has colours."""
    if os.environ.get("NO_COLOR"):
        return False
    return os.environ.get("FORCE_COLOR", "0") not in ("", "0") or is_terminal(stream)


def columns_of(stream: TextIO | None) -> int | None:
    """Returns the columns that lines should fit: those of COLUMNS, or of the terminal; None where there is no bound."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    if stream is None or not is_terminal(stream):
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def progress_console() -> Console:
    """Returns the console for progress bars, on standard error. Its `is_terminal` says whether bars are to be shown."""
    from rich.console import Console

    colours = has_colours(sys.stderr)
    return Console(
        stderr=True,
        force_terminal=is_terminal(sys.stderr),
        no_color=not colours,
        color_system="auto" if colours else None,
        highlight=False,
        width=columns_of(sys.stderr),
    )
