"""`emberline config`: shows which options of a server or a model are in force, and where each comes from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from emberline.cli import serve
from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.names import complete_in_repository
from emberline.cli.server_call import IDENTITY, call_server, model_path, timeout_option
from emberline.fitted_table import FittedTable, whole, wrapping
from storage.errors import NotFound
from storage.objects import is_url

_Command = TypeVar("_Command", bound=click.Command)
_NONE = "-"


def _with_options_of_serve(command: _Command) -> _Command:
    """Adds the options of `emberline serve`, none of them required."""
    for option in serve.command.params:
        own = copy.copy(option)
        own.required = False
        command.params.append(own)
    return command


@_with_options_of_serve
@click.command(
    cls=Command,
    name="config",
    epilog="""\b
Examples:
  emberline config --model-repository build/models --http-port 9000      what `emberline serve` would do
  emberline config movielens --model-repository build/models             what config.pbtxt says
  emberline config --url http://127.0.0.1:8000                           what a running server does
  emberline config movielens --url http://127.0.0.1:8000 --json""",
)
@click.argument("model", default="", shell_complete=complete_in_repository("model_repository"))
@click.option("--url", help="The HTTP address of a running server, which is asked instead.")
@IDENTITY
@timeout_option(30.0)
@JSON
def command(
    model: str, url: str | None, timeout: float, as_json: bool, log_levels: tuple[str, ...], **options: Any
) -> None:
    """Show which options are in force, and where each comes from: its default, a file, the environment or a flag.

    Without --url, the flags and the environment are read as `emberline serve` reads them. With MODEL, the options are
    those of its config.pbtxt; a running server adds what an operator has set since (`emberline sessions`, `budget`).
    Secrets are not options: files that hold them are named, not read.
    """
    given = click.get_current_context()
    if url is not None:
        _refuse_both(given, options)
        state, _ = call_server(url, model_path(model, "options") if model else "/v2/options", timeout)
    elif options["model_repository"] is None:
        raise click.UsageError("give --model-repository, as for `emberline serve`, or --url of a running server")
    else:
        state = _of_model(options["model_repository"], model) if model else _of_server(given, options)
    if as_json:
        print_json(state)
    else:
        _show(state)


def _refuse_both(given: click.Context, options: Mapping[str, Any]) -> None:
    for name in (*options, "log_levels"):
        if given.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{serve.flag_of(name)} is for a server that is not asked; give it or --url")


def _of_server(given: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    from serving.model_config.in_force import server_settings

    return {"of": "server", "name": "emberline", "options": server_settings(serve.server_config(given, options))}


def _of_model(repository: Path | str, model: str) -> dict[str, Any]:
    from serving.model_config.in_force import model_settings
    from serving.model_config.pbtxt import read_model_config
    from serving.model_folders import folders, is_model

    if is_url(repository):
        raise click.UsageError(f"{repository} is read by a server; give the --url of one that serves it")
    folder = Path(repository) / model
    if not folder.is_dir() or not is_model(folder):
        there = [name for name in folders(Path(repository)) if is_model(Path(repository) / name)]
        raise NotFound(f"{repository} has no model {model!r}; it has {', '.join(there) or 'none'}")
    return {"of": "model", "name": model, "options": model_settings(read_model_config(folder))}


def _show(state: Mapping[str, Any]) -> None:
    flags = {option.name: option.opts[0] for option in serve.command.params} if state["of"] == "server" else {}
    table = FittedTable(whole("option"), wrapping("value"), wrapping("from"))
    for entry in state["options"]:
        table.add_row(flags.get(entry["name"], entry["name"]), _text(entry["value"]), entry["from"])
    table_console().print(table)


def _text(value: Any) -> str:
    if value is None or value == []:
        return _NONE
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
