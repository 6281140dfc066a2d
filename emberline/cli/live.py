"""The commands that control a model of a running server. Each prints the state after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json
from emberline.cli.names import MODEL, complete_snapshots
from emberline.cli.server_call import URL, call_server, model_path, timeout_option
from emberline.cli.snapshots import state_line

# A load copies and checks a whole version; the rest is done within milliseconds.
_SLOW_S, _QUICK_S = 3600.0, 30.0


def _control(model: str, verb: str, url: str, timeout: float, content: object, as_json: bool) -> None:
    state, _ = call_server(url, model_path(model, verb), timeout, content)
    _show(state, as_json)


def _show(state: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(state)
    else:
        click.echo(state_line(state))


@click.command(
    cls=Command,
    name="rollback",
    epilog="""\b
Examples:
  emberline rollback movielens                one snapshot back
  emberline rollback movielens --steps 3
  emberline rollback movielens --to 1.16      or an id, as `emberline snapshots` lists them""",
)
@MODEL
@click.option(
    "--to",
    default="",
    help="The snapshot to serve, as VERSION.SEQUENCE or id.",
    show_default=False,
    shell_complete=complete_snapshots,
)
@click.option("--steps", type=click.IntRange(1, 1000), help="How many snapshots back; default: 1.", show_default=False)
@JSON
@URL
@timeout_option(_QUICK_S)
def rollback(model: str, to: str, steps: int | None, url: str, timeout: float, as_json: bool) -> None:
    """Serve an earlier snapshot of MODEL, at once, and stay there.

    What is rolled back is held, with everything that descends from it: it does not come back by itself, also not after
    a restart. `emberline resume` lets it in again; a delta whose parent is the snapshot now served (the trainer makes
    one with `emberline publish --from`) ends the hold and goes on from here.
    """
    if to and steps is not None:
        raise click.UsageError("--to and --steps both say where to; give one of them")
    content = {"to": to} if to else {"steps": 1 if steps is None else steps}
    _control(model, "rollback", url, timeout, content, as_json)


@click.command(cls=Command, name="resume", epilog="\b\nExample:\n  emberline resume movielens")
@MODEL
@JSON
@URL
@timeout_option(_QUICK_S)
def resume(model: str, url: str, timeout: float, as_json: bool) -> None:
    """Follow what is published for MODEL again: ends a rollback's hold, a pause and a pin."""
    _control(model, "resume", url, timeout, {}, as_json)


@click.command(cls=Command, name="pause", epilog="\b\nExample:\n  emberline pause movielens")
@MODEL
@JSON
@URL
@timeout_option(_QUICK_S)
def pause(model: str, url: str, timeout: float, as_json: bool) -> None:
    """Take no updates for MODEL until `emberline resume`. What is served stays as it is, also over a restart."""
    _control(model, "pause", url, timeout, {}, as_json)


@click.command(
    cls=Command,
    name="pin",
    epilog="""\b
Examples:
  emberline pin movielens           what is served now
  emberline pin movielens 1.16""",
)
@MODEL
@click.argument("to", default="", shell_complete=complete_snapshots)
@JSON
@URL
@timeout_option(_QUICK_S)
def pin(model: str, to: str, url: str, timeout: float, as_json: bool) -> None:
    """Serve the snapshot TO (VERSION.SEQUENCE or id) of MODEL and nothing else until `emberline resume`.

    Without TO it is the snapshot served now. Unlike a rollback, no later delta ends it, also not one that continues
    from TO.
    """
    _control(model, "pin", url, timeout, {"to": to}, as_json)


@click.command(
    cls=Command,
    name="canary",
    epilog="""\b
Examples:
  emberline canary movielens --fraction 0.05              the next good update gets 5% of the requests
  emberline canary movielens --fraction 0.05 --to 1.18    a snapshot that is held or retained
  emberline canary movielens --promote                    serve it to everybody
  emberline canary movielens --stop                       set it aside""",
)
@MODEL
@click.option(
    "--fraction",
    "--share",
    "fraction",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the requests, above 0 and at most 1.",
)
@click.option(
    "--to",
    default="",
    help="The snapshot to try, as VERSION.SEQUENCE or id.",
    show_default=False,
    shell_complete=complete_snapshots,
)
@click.option("--promote", is_flag=True, help="The canary becomes the served snapshot.")
@click.option("--stop", is_flag=True, help="The canary is held, and no request reaches it any more.")
@JSON
@URL
@timeout_option(_QUICK_S)
def canary(
    model: str, fraction: float | None, to: str, promote: bool, stop: bool, url: str, timeout: float, as_json: bool
) -> None:
    """Serve two snapshots of MODEL at once: a canary for a part of the requests, the served one for the rest.

    Requests with a routing key stay with one of the two (`emberline predict --routing-key`). The metrics page counts
    both apart.
    """
    if (fraction is not None) + promote + stop != 1:
        raise click.UsageError("give one of --fraction, --promote and --stop")
    if to and fraction is None:
        raise click.UsageError("--to goes with --fraction only")
    content: dict[str, object] = {"promote": True} if promote else {"stop": True}
    if fraction is not None:
        content = {"fraction": fraction, **({"to": to} if to else {})}
    _control(model, "canary", url, timeout, content, as_json)


@click.command(
    cls=Command,
    name="allow",
    epilog="""\b
Example:
  emberline allow movielens --version 4 --input age --input gender""",
)
@MODEL
@click.option("--version", type=click.IntRange(1), required=True, help="The version that waits.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    help="An input or output whose change is accepted; may be given several times.",
)
@JSON
@URL
@timeout_option(_QUICK_S)
def allow(model: str, version: int, inputs: tuple[str, ...], url: str, timeout: float, as_json: bool) -> None:
    """Let in a version of MODEL whose inputs or outputs were removed, renamed or changed their type.

    Such a version waits, because callers that send the old inputs would get errors. `emberline snapshots` says which
    names it waits for; each has to be named here.
    """
    _control(model, "allow", url, timeout, {"version": version, "inputs": list(inputs)}, as_json)


@click.command(cls=Command, name="load", epilog="\b\nExample:\n  emberline load movielens")
@MODEL
@JSON
@URL
@timeout_option(_SLOW_S)
def load(model: str, url: str, timeout: float, as_json: bool) -> None:
    """Load MODEL, which lies in the repository of the server; waits until it is served."""
    call_server(url, model_path(model, "load"), timeout, {})
    state, _ = call_server(url, model_path(model, "snapshots"), timeout)
    _show(state, as_json)


@click.command(cls=Command, name="unload", epilog="\b\nExample:\n  emberline unload movielens")
@MODEL
@URL
@timeout_option(_SLOW_S)
def unload(model: str, url: str, timeout: float) -> None:
    """Stop serving MODEL and give its memory back; requests that are under way are answered first."""
    call_server(url, model_path(model, "unload"), timeout, {})
    click.echo(f"{model}: unloaded")
