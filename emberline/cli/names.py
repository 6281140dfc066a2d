"""Completes names of models and snapshots, from a server or a folder, where that is quick."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from emberline.cli.server_call import call_server, model_path
from storage.errors import EmberlineError
from storage.objects import is_url

# A shell waits for it.
_TIMEOUT_S = 0.5

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def complete_models(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Returns the models of the server that the command line names."""
    found = _ask(ctx, "/v1/models")
    return _items(found["models"] if found else (), incomplete)


def complete_snapshots(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Returns the snapshots of the model that the command line names, the newest first."""
    model = ctx.params.get("model")
    found = _ask(ctx, model_path(model, "snapshots")) if model else None
    entries = reversed(found["snapshots"]) if found else ()
    return _items((f"{each['name']}\t{each['state']}" for each in entries), incomplete)


def complete_in_repository(option: str) -> Complete:
    """Makes a completion of the models in the folder that the value of an option names."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from serving.model_folders import folders, is_model

        folder = ctx.params.get(option)
        if folder is None or is_url(folder):
            return []
        with contextlib.suppress(OSError):
            return _items((name for name in folders(Path(folder)) if is_model(Path(folder) / name)), incomplete)
        return []

    return complete


def _ask(ctx: click.Context, path: str) -> Any:
    with contextlib.suppress(EmberlineError, click.ClickException), ctx.scope(cleanup=False):
        return call_server(ctx.params.get("url") or "", path, _TIMEOUT_S)[0]
    return None


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem[str]]:
    pairs = (name.partition("\t") for name in names)
    return [CompletionItem(name, help=help_ or None) for name, _, help_ in pairs if name.startswith(incomplete)]


#: The argument MODEL of commands that ask a server.
MODEL = click.argument("model", shell_complete=complete_models)
