"""`emberline sessions`: shows and changes the number of sessions of a served model, while it serves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.names import MODEL
from emberline.cli.server_call import URL, call_server, model_path, timeout_option
from emberline.cli.snapshots import gpu_fate
from emberline.fitted_table import FittedTable, wrapping


@click.command(
    cls=Command,
    name="sessions",
    epilog="""\b
Examples:
  emberline sessions movielens                 how many there are, and what each has done
  emberline sessions movielens --count 4
  emberline sessions movielens --configured    as config.pbtxt says again""",
)
@MODEL
@click.option("--count", type=click.IntRange(1, 256), help="How many each version is to have.")
@click.option("--configured", is_flag=True, help="Go back to what config.pbtxt says.")
@JSON
@URL
@timeout_option(30.0)
def command(model: str, count: int | None, configured: bool, as_json: bool, url: str, timeout: float) -> None:
    """Show or change how many sessions answer the requests of MODEL, while it serves.

    A session is a thread over the one copy of weights and tables: it takes a batch, looks its rows up and computes its
    scores. One that is taken away ends after its batch; no request is lost. The number stays over a restart, until
    config.pbtxt says another one (instance_group). Where the option max_sessions lets sessions follow the load, --count
    fixes their number, and --configured frees it again.
    """
    if configured and count is not None:
        raise click.UsageError("--count and --configured both say what it is to be; give one of them")
    content = {"count": count} if configured or count is not None else None
    state, _ = call_server(url, model_path(model, "sessions"), timeout, content)
    if as_json:
        print_json(state)
    else:
        show(state)


def show(state: Mapping[str, Any]) -> None:
    """Prints a line for each version, and a table of the sessions."""
    console = table_console()
    for version in state["versions"]:
        line = f"{state['model']}/{version['version']}: {version['count']} session(s), picked {version['pick']}"
        line += f"; {version['queued']} request(s) wait"
        if version["count"] != state["configured"]:
            line += f"; config.pbtxt says {state['configured']}"
        console.print(line)
        if version.get("scaling"):
            console.print(f"  {_scaling(version['scaling'])}", highlight=False)
        runner = version["runner"]
        console.print(f"  the dense graph is run by {runner['name']!r}")
        for each in runner["compared"]:
            times = ", ".join(f"{us:.0f} us for {rows} row(s)" for rows, us in each["us"].items())
            console.print(f"    {each['name']}: {each['why_not'] or times}")
        for number, gpu in version.get("gpus", {}).items():
            what = "everything" if gpu["given_up"] else "rows"
            if reason := gpu["given_up"] or (gpu["hbm"] or {}).get("given_up"):
                console.print(f"  GPU {number} {gpu_fate(what)}: {reason}", highlight=False)
    table = FittedTable(wrapping("session"), "batches", "requests", "rows", "busy")
    for version in state["versions"]:
        for session in version["sessions"]:
            table.add_row(
                session["name"],
                f"{session['batches']:,}",
                f"{session['requests']:,}",
                f"{session['rows']:,}",
                f"{session['busy_s']:,.1f} s",
            )
    console.print(table)


def _scaling(scaling: Mapping[str, Any]) -> str:
    """Returns what the load does to the number of sessions, in words."""
    bounds = f"{scaling['least']} to {scaling['most']} sessions by load (max_sessions)"
    if scaling["fixed"]:
        return f"{bounds}, but an operator has fixed their number; --configured frees it"
    last = scaling["last"]
    if last is None:
        return f"{bounds}; there was no change so far"
    at = time.strftime("%H:%M:%S", time.localtime(last["unix_ms"] / 1000))
    return f"{bounds}; {last['after']} instead of {last['before']} since {at}: {last['reason']}"
