"""The option --network of imports of tables: a file with a network whose rows were looked up before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from emberline.cli.command import LocalPath, WrongUsageError
from storage.errors import InvalidInput


def network_options() -> list[Callable[..., Any]]:
    """Makes the options --network and --rows."""
    return [
        click.option(
            "--network",
            type=LocalPath(exists=True, dir_okay=False),
            help="ONNX or .pt2 file of a network that takes rows as float inputs, instead of --module.",
        ),
        click.option(
            "--rows",
            "rows_of",
            metavar="INPUT=TABLE[:POOLING]",
            multiple=True,
            help="The input of --network takes rows of the table: of one id or a fixed number of them (row), or the "
            "sum or mean of a list; may be given several times.  [default: row]",
        ),
    ]


def check_network(network: Path | None, rows_of: Sequence[str], module: str | None, mapping: Sequence[str]) -> None:
    """Raises WrongUsageError for options that do not go together."""
    if network is not None and (module or mapping):
        raise WrongUsageError("--network goes with --rows, and neither with --module nor with --map")
    if (network is None) == bool(rows_of):
        raise WrongUsageError("--rows says which inputs of --network take rows of which table; give both or none")


def network_of(file: Path, rows_of: Sequence[str], tables: Sequence[Any]) -> tuple[Any, Any, dict[str, str]]:
    """Returns the network around the tables, a sample, and the module's names of the tables."""
    from trainer.converting.rows_elsewhere import RowsOf, connected
    from trainer.importing.tables_alone import first_ids

    if file.suffix == ".onnx":
        from trainer.converting.onnx_module import convert_onnx as convert
    elif file.suffix == ".pt2":
        from trainer.converting.pt2_module import convert_pt2 as convert
    else:
        raise InvalidInput(f"--network {file}: expected an .onnx or .pt2 file", field="--network")
    ids = {table.name: first_ids(table) for table in tables}
    return connected(convert(file), [RowsOf.parse(text) for text in rows_of], tables, ids)
