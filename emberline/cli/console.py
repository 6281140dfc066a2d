"""The console that commands print tables to."""

from __future__ import annotations

import os
import sys

from rich.console import Console

# Columns in a file or a pipe: wide enough that no cell of our tables is cut.
_PIPE_COLUMNS = 200


def table_console() -> Console:
    """Returns a console on standard output. Text is not wrapped, tables are as wide as the terminal or COLUMNS."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return Console(highlight=False, soft_wrap=True, width=width)
