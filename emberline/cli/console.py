"""The console that commands print to, and the output of `--json`."""

from __future__ import annotations

import sys
from typing import Any

import click
import orjson
from rich.console import Console

from emberline.terminal import columns_of, has_colours

# Columns where nothing bounds them, in a file or a pipe: more than any line of ours has.
_NO_BOUND = 100_000
_JSON = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY

#: The option of every command that prints a table.
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead, as docs/cli.md describes it.")


class _Output(Console):
    """Leaves a reader that has gone to the frame of the commands; rich would end the process with 1."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError again."""
        raise


def table_console() -> Console:
    """Returns a console on standard output. Lines are not wrapped; a FittedTable fits the terminal, or COLUMNS.

    In a file or a pipe, without COLUMNS, tables are as wide as their cells.
    """
    colours = has_colours(sys.stdout)
    return _Output(
        highlight=False,
        soft_wrap=True,
        markup=False,
        emoji=False,
        force_terminal=colours,
        no_color=not colours,
        color_system="auto" if colours else None,
        width=columns_of(sys.stdout) or _NO_BOUND,
    )


def print_json(value: Any) -> None:
    """Prints a value as one line of JSON: paths as text, and null for numbers that are not finite."""
    click.echo(orjson.dumps(value, default=str, option=_JSON).decode())


def json_file(value: Any) -> str:
    """Returns the same for a file, in many lines that people can read."""
    return orjson.dumps(value, default=str, option=_JSON | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
