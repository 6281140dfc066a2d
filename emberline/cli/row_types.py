"""Row types on the command line: parsing of options, and reports of a published version or delta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from emberline.cli.command import WrongUsageError
from storage.specs import ROW_TYPES, TableSpec

DEFAULT = "default"
_HELP = (
    "How rows are stored: fp32, fp16, bf16 or int8, for all tables; TABLE=TYPE for one. May be given several times. "
)
OPTION_HELP = f"{_HELP}Default: what the configuration says, else as they were published last."
IMPORT_HELP = f"{_HELP}Default: fp32."


def asked_row_types(given: Sequence[str], configured: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the row types by table, "default" for the rest; None when no option was given.

    A type without a table is for all of them, whatever is configured. Raises WrongUsageError.
    """
    if not given:
        return None
    entries: dict[str, str] = {}
    for text in given:
        table, _, row_type = text.rpartition("=")
        name = table or DEFAULT
        if row_type not in ROW_TYPES or ("=" in text and not table):
            raise WrongUsageError(
                f"--row-type {text!r}: expected TYPE or TABLE=TYPE, TYPE one of {', '.join(ROW_TYPES)}",
                field="--row-type",
            )
        if name in entries:
            raise WrongUsageError(f"--row-type is given twice for {name!r}", field="--row-type")
        entries[name] = row_type
    return entries if DEFAULT in entries else {**configured, **entries}


def rounding_lines(metadata: Mapping[str, object]) -> list[str]:
    """Describes tables whose rows were rounded, by a manifest's metadata, one line a table."""
    report = metadata.get("rounding")
    lines: list[str] = []
    for table, entry in report.items() if isinstance(report, Mapping) else ():
        try:
            lines.append(
                f"table {table}: rows as {entry['row_type']}, {entry['bytes']:,} bytes instead of "
                f"{entry['bytes_as_fp32']:,}; rounding error at most {entry['largest_error']:.3g}, "
                f"{entry['mean_error']:.3g} on average"
            )
        except (KeyError, TypeError, ValueError):
            continue  # metadata is free text, written by anyone
    return lines


def empty_lines(tables: Sequence[TableSpec]) -> list[str]:
    """Describes the tables of a version that have no rows, one line a table."""
    return [f"table {table.name}: has no rows; every id reads as {table.absent}" for table in tables if not table.rows]


def print_published(folder: Path) -> None:
    """Prints tables without a row, and the loss of accuracy by publishing, for a version's or a delta's folder."""
    from storage import open_delta, open_version
    from storage.checkpoint.deltas import DELTAS

    is_delta = folder.parent.name == DELTAS
    published = open_delta(folder, verify=False) if is_delta else open_version(folder, verify=False)
    for line in [*([] if is_delta else empty_lines(published.tables)), *rounding_lines(published.manifest.metadata)]:
        click.echo(line)
