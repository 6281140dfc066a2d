"""`emberline status`: shows what a server serves, since when, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from emberline.ages import age
from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.server_call import URL, RefusedError, call_server, model_path, read_page, timeout_option
from emberline.cli.snapshots import beside, refusal
from emberline.fitted_table import FittedTable, whole, wrapping
from storage.errors import InvalidInput

# What a server answers of the snapshots of an identity model: it has none, loaded or not.
_HAS_NONE = 501


@click.command(
    cls=Command,
    name="status",
    epilog="""\b
Examples:
  emberline status
  emberline status --url http://10.0.0.7:8000
  EMBERLINE_URL=http://10.0.0.7:8000 emberline status --json""",
)
@URL
@JSON
@timeout_option(30.0)
def command(url: str, as_json: bool, timeout: float) -> None:
    """Show what a server serves of each model and since when, what it has answered, and what is wrong.

    Below the table stand models that are not ready, canaries, shadows, what updates wait for, and what was refused.
    `emberline snapshots MODEL` says more of one model; `emberline health` says it to a script.
    """
    state = read_status(url, timeout)
    if as_json:
        print_json(state)
    else:
        show(state)


def read_status(url: str, timeout: float) -> dict[str, Any]:
    """Asks a server. Returns its name, version and readiness, and for each model its index, snapshots and counts.

    Raises InvalidInput, Unavailable or ConfigError as `call_server` does.
    """
    server, _ = call_server(url, "/v2", timeout)
    try:
        call_server(url, "/v2/health/ready", timeout)
        ready = True
    except InvalidInput:
        ready = False
    models: dict[str, dict[str, Any]] = {}
    for entry in call_server(url, "/v2/repository/index", timeout, {})[0]:
        model = models.setdefault(entry["name"], {"versions": [], "answered": 0, "failed": 0, "seconds": 0.0})
        model["versions"].append({key: value for key, value in entry.items() if key != "name"})
    for entry in call_server(url, "/v2/models/stats", timeout)[0]["model_stats"]:
        if (known := models.get(entry["name"])) is not None:
            counts = entry["inference_stats"]
            known["answered"] += counts["success"]["count"]
            known["failed"] += counts["fail"]["count"]
            known["seconds"] += counts["success"]["ns"] / 1e9
    for name, model in models.items():
        try:
            model["snapshots"], _ = call_server(url, model_path(name, "snapshots"), timeout)
        except RefusedError as error:
            model["snapshots"] = None
            if error.code != _HAS_NONE:  # it is unloaded, or is being loaded
                model["trouble"] = str(error)
    state = {"url": url, "server": server["name"], "version": server["version"], "ready": ready, "models": models}
    return {**state, "stuck": _stuck_clients(url, timeout)}


def _stuck_clients(url: str, timeout: float) -> list[dict[str, Any]]:
    """Returns the clients that the server waits for; none where the caller may not see its metrics."""
    from emberline.top.readings import Reading  # here: the parser takes a while to import

    try:
        page = Reading.parse(read_page(url, "/metrics", timeout), 0.0)
    except (InvalidInput, ValueError):
        return []
    return [{**of, "connections": round(count)} for of, count in page.series("emberline_stuck_clients")]


def show(state: Mapping[str, Any]) -> None:
    """Prints a line for the server, a table of its models, and a line for everything that needs a look."""
    console = table_console()
    console.print(f"{state['url']}: {state['server']} {state['version']}, {'ready' if state['ready'] else 'not ready'}")
    names = ("since", "published", whole("mode"), "answered", "failed", "mean ms")
    table = FittedTable(wrapping("model"), whole("serves"), *names)
    for name, model in state["models"].items():
        found = model["snapshots"]
        served = found and found["served"]
        answered = model["answered"]
        table.add_row(
            name,
            served["name"] if served else _versions(model) or "nothing",
            f"{age(served['since_unix_ms'])} ago" if served else "",
            f"{age(_published(found))} ago" if served and _published(found) else "",
            found["mode"] if found else "",
            f"{answered:,}",
            f"{model['failed']:,}",
            f"{model['seconds'] / answered * 1e3:,.2f}" if answered else "",
        )
    if state["models"]:
        console.print(table)
    else:
        console.print("It has no models.")
    for each in state["stuck"]:
        count = each["connections"]
        held = f"{count} connection{'s' if count > 1 else ''} of {each['transport']}"
        console.print(f"{each['client']} does not send its requests or read its answers: {held}")
    for name, model in state["models"].items():
        for line in notes(model):
            console.print(f"{name}: {line}")


def notes(model: Mapping[str, Any]) -> Iterator[str]:
    """Yields what an operator should know of a model beyond the table, a line each."""
    for version in model["versions"]:
        if version["state"] != "READY":
            number, reason = version.get("version", ""), version.get("reason", "")
            yield f"{f'version {number} is ' if number else ''}{version['state']}{f': {reason}' if reason else ''}"
    found = model["snapshots"]
    if found is None:
        if "trouble" in model:
            yield model["trouble"]
        return
    yield from beside(found)
    if found.get("store_unreadable"):
        yield f"the folder of its stores cannot be read: {found['store_unreadable']}"
    for refused in found["quarantined"]:
        yield f"refused {age(refused['unix_ms'])} ago: {refused['path']}: {refusal(refused)}"


def _versions(model: Mapping[str, Any]) -> str:
    """Returns what is served of a model without snapshots, "" for nothing and for a model that has them."""
    if model["snapshots"] is not None or "trouble" in model:
        return ""
    ready = [entry["version"] for entry in model["versions"] if entry["state"] == "READY"]
    return f"version {', '.join(ready)}" if ready else ""


def _published(found: Mapping[str, Any]) -> int:
    moments = (entry["published_unix_ms"] for entry in found["snapshots"] if entry["id"] == found["served"]["id"])
    return next(moments, 0) or 0
