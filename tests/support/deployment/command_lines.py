"""Parses command lines of deployment files by the real command, and checks what the server makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
import pytest

from emberline.cli.frame import command
from serving.config import ServerConfig


def parse(line: Sequence[str], variables: Mapping[str, str]) -> click.Context:
    """Parses `emberline SUBCOMMAND ...`. Fails the test where the command refuses it, and for unknown variables.

    variables: the environment of the process.
    """
    program, name, *rest = line
    assert program == "emberline", line
    with pytest.MonkeyPatch.context() as patch, click.Context(command) as parent:
        for variable, value in variables.items():
            patch.setenv(variable, value)
        subcommand = command.get_command(parent, name)
        assert subcommand is not None, f"there is no `emberline {name}`"
        try:
            context = subcommand.make_context(name, list(rest), parent)
        except click.ClickException as error:
            pytest.fail(f"{' '.join(line)}: {error.format_message()}")
    known = {option.envvar for option in subcommand.params if option.envvar}
    unknown = {each for each in variables if each.startswith("EMBERLINE_")} - known
    if name == "serve":
        assert not unknown, f"`emberline {name}` reads no {', '.join(sorted(unknown))}"
        options = dict(context.params)
        options.pop("log_levels")
        ServerConfig(**options)
    return context


def server_config(line: Sequence[str], variables: Mapping[str, str]) -> ServerConfig:
    """Returns the configuration that `emberline serve ...` makes of a command line."""
    options = dict(parse(line, variables).params)
    options.pop("log_levels")
    return ServerConfig(**options)
