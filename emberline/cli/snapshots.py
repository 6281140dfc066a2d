"""`emberline snapshots`: shows what a server serves of a model, what it could go back to, and what it refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from emberline.ages import age, utc
from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.names import MODEL
from emberline.cli.server_call import URL, call_server, model_path, timeout_option
from emberline.fitted_table import FittedTable, elided, whole, wrapping


@click.command(
    cls=Command,
    name="snapshots",
    epilog="""\b
Examples:
  emberline snapshots movielens
  emberline snapshots movielens --json""",
)
@MODEL
@URL
@JSON
@timeout_option(30.0)
def command(model: str, url: str, as_json: bool, timeout: float) -> None:
    """Show the snapshots of MODEL: the one served, those that `emberline rollback` reaches, those held back.

    A snapshot is called VERSION.SEQUENCE: 3.0 is version 3 as it was published, 3.17 is it after its delta 17. Below
    stand what was refused, with the reason, and what an update waits for.
    """
    state, _ = call_server(url, model_path(model, "snapshots"), timeout)
    if as_json:
        print_json(state)
    else:
        show(state)


def state_line(state: Mapping[str, Any]) -> str:
    """Returns one line: what is served, how, and what waits."""
    served = state.get("served")
    what = f"serves {served['name']} ({served['id']})" if served else "serves nothing"
    return "; ".join([f"{state['model']}: {state['mode']}, {what}", *beside(state)])


def beside(state: Mapping[str, Any]) -> Iterator[str]:
    """Yields what there is beside what is served: a canary, held snapshots, a shadow, and what updates wait for."""
    if canary := state.get("canary"):
        yield f"canary {canary['name']} for {canary['fraction']:.4g} of the requests"
    held = [entry["name"] for entry in state["snapshots"] if entry["state"] == "held"]
    if held:
        yield f"held: {', '.join(held)}"
    if line := shadow_line(state.get("shadow")):
        yield line
    yield from feedback_lines(state)
    for lost in state.get("gpus_given_up", ()):
        yield f"GPU {lost['gpu']} {gpu_fate(lost['what'])} for version {lost['version']}: {lost['reason']}"
    if (since := state.get("disk_slow_since_unix_ms")) is not None:
        wait_ms = state["disk_wait_ms"]
        yield f"the disk has been slow for {age(since)}: lookups that read from it wait {wait_ms:,.0f} ms at present"
    if state.get("staging"):
        yield f"taking {state['staging']}: it is read, staged and judged"
    if state.get("waiting"):
        yield f"waiting: {state['waiting']}"


def gpu_fate(what: str) -> str:
    """Returns in words what became of a GPU of which "rows" or "everything" is given up."""
    return "holds no rows any more" if what == "rows" else "is not used any more"


def refusal(entry: Mapping[str, Any]) -> str:
    """Returns why a snapshot was refused, with the kind of error by which the runbook tells what to do."""
    return f"{entry['kind']}: {entry['reason']}"


def feedback_lines(state: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the log of requests, how good scores were, and what live AUC says of a canary."""
    log, feedback, trial = state.get("feature_log"), state.get("feedback"), state.get("live_auc")
    if log and log["trouble"]:
        yield f"the log of requests: {log['trouble']}"
    for each in (feedback or {}).get("quality", []):
        if state["served"] and each["snapshot"] == state["served"]["name"] and each["auc"] is not None:
            error = f" ± {each['auc_error']:.4f}" if each["auc_error"] is not None else ""
            arm = "" if each["arm"] == "main" else f" ({each['arm']})"
            yield f"live AUC of {each['output']}{arm}: {each['auc']:.4f}{error} over {each['rows']:,} labelled rows"
    if trial:
        of = f" of {trial['snapshot']}" if trial["snapshot"] else ""
        yield f"trial by live AUC{of}: {trial['verdict']}: {trial['reason']}"


def shadow_line(shadow: Mapping[str, Any] | None) -> str:
    """Returns one line on a shadow: which one, its verdict with the reason, and how much was compared; "" for none."""
    if not shadow:
        return ""
    if "ended" in shadow:
        return f"the shadow ended: {shadow['ended']}"
    reason = f": {shadow['reason']}" if shadow["reason"] else ""
    dropped = sum(shadow["dropped"].values())
    state = "" if shadow["running"] or shadow["verdict"] in ("loading", "fails") else ", its time is up"
    return (
        f"shadow {shadow['name']} of {shadow['share']:.4g} of the requests{state}, {shadow['verdict']}{reason} "
        f"({shadow['requests']:,} requests, {shadow['rows']:,} rows compared, {dropped:,} dropped, "
        f"{shadow['memory_bytes']:,} bytes)"
    )


def show(state: Mapping[str, Any]) -> None:
    """Prints everything."""
    console = table_console()
    console.print(state_line(state))
    names = ("rows", "removed", "bytes", wrapping("published (UTC)"), "visible in", elided("id"))
    table = FittedTable(whole("snapshot"), whole("state"), *names)
    for entry in state["snapshots"]:
        visible = entry.get("visible_ms")
        table.add_row(
            entry["name"],
            entry["state"],
            f"{entry['rows']:,}",
            f"{entry['removed']:,}",
            f"{entry['bytes']:,}",
            utc(entry["published_unix_ms"]),
            f"{visible:,.0f} ms" if visible else "",
            entry["id"],
        )
    console.print(table)
    if state["quarantined"]:
        refused = FittedTable(wrapping("path"), wrapping("when (UTC)"), wrapping("reason"), title="refused")
        for entry in state["quarantined"]:
            refused.add_row(entry["path"], utc(entry["unix_ms"]), refusal(entry))
        console.print(refused)
