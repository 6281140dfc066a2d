"""`emberline budget`: shows and changes the memory for the rows of a served model, while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json
from emberline.cli.names import MODEL
from emberline.cli.server_call import URL, call_server, model_path, timeout_option
from emberline.cli.sizes import BYTES
from storage.byte_sizes import human_bytes


@click.command(
    cls=Command,
    name="budget",
    epilog="""\b
Examples:
  emberline budget movielens                        what it is, and what is used of it
  emberline budget movielens --dram-bytes 2GiB
  emberline budget movielens --configured           as config.pbtxt says again""",
)
@MODEL
@click.option("--dram-bytes", type=BYTES, help="The new budget, as bytes or 512MiB.", show_default=False)
@click.option("--configured", is_flag=True, help="Go back to what config.pbtxt says.")
@JSON
@URL
@timeout_option(600.0)
def command(model: str, dram_bytes: int | None, configured: bool, as_json: bool, url: str, timeout: float) -> None:
    """Show or change how much memory the rows of MODEL may take, while it answers requests.

    A smaller budget lets the coldest rows go before the command returns; a larger one is filled in the background. It
    stays over a restart, until config.pbtxt says another dram_bytes. `emberline plan` says what it would give.
    """
    if configured and dram_bytes is not None:
        raise click.UsageError("--dram-bytes and --configured both say what it is to be; give one of them")
    content = {"dram_bytes": dram_bytes} if configured or dram_bytes is not None else None
    state, _ = call_server(url, model_path(model, "budget"), timeout, content)
    if as_json:
        print_json(state)
    else:
        click.echo(budget_line(state))


def budget_line(state: Mapping[str, Any]) -> str:
    """Returns one line: the budget, what is used of it, and where it comes from."""
    text = f"{state['model']}: "
    if state["dram_bytes"] is None:
        text += "no budget, every row is held in DRAM"
    else:
        text += f"budget {human_bytes(state['dram_bytes'])}"
    text += f"; {human_bytes(state['used_bytes'])} used for {sum(s['rows']['dram'] for s in state['stores']):,} rows"
    if state["fixed_bytes"]:
        text += f"; {human_bytes(state['fixed_bytes'])} beside it for empty caches, however small the budget is"
    if state["dram_bytes"] != state["configured_bytes"]:
        said = state["configured_bytes"]
        text += f"; config.pbtxt says {'none' if said is None else human_bytes(said)}"
    if len(state["stores"]) > 1:
        parts = ", ".join(f"{s['version']}: {human_bytes(s['dram_bytes'] or 0)}" for s in state["stores"])
        text += f"; by version {parts}"
    return text
