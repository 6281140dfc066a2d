"""`emberline fleet`: shows what the replicas of a model serve, who has staged what, and who refused it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from emberline.ages import age
from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.names import MODEL
from emberline.cli.server_call import URL, call_server, model_path, timeout_option
from emberline.fitted_table import FittedTable, whole, wrapping
from storage.errors import NotFound
from storage.objects import is_url

# Exit code where a server answers with what it last knew, because the object store does not answer it.
LAST_KNOWN = 3


@click.command(
    cls=Command,
    name="fleet",
    epilog="""\b
Examples:
  emberline fleet movielens --url http://10.0.0.7:8000     any of its servers
  emberline fleet s3://bucket/models/movielens             without a server
  emberline fleet movielens --json""",
)
@MODEL
@URL
@JSON
@timeout_option(30.0)
def command(model: str, url: str, as_json: bool, timeout: float) -> None:
    """Show what the servers of a fleet serve of MODEL: its name, or its URL in the object store.

    A server that answers requests and serves something else is named as such. Below stand the snapshots that were
    refused, by whom and why. The servers are started with `emberline serve --fleet`. A server that gets no answer from
    the object store shows what it last knew, and says so; the exit code is 3 then.
    """
    if is_url(model):
        state = _from_store(model)
    else:
        state, _ = call_server(url, model_path(model, "fleet"), timeout)
    if as_json:
        print_json(state)
    else:
        show(state)
    if _trouble(state):
        sys.exit(LAST_KNOWN)


def _from_store(url: str) -> Mapping[str, Any]:
    from serving.fleet.peers import Peers
    from serving.fleet.reading import Reading
    from serving.fleet.view import fleet_view
    from storage.objects import ObjectStore
    from storage.objects.fleet import FleetObjects
    from storage.objects.published import PublishedModel
    from storage.objects.trials import TrialObjects

    root, _, name = url.rstrip("/").rpartition("/")
    objects = FleetObjects(PublishedModel(ObjectStore(root), name))
    head = objects.model.head()
    if not head.versions:
        raise NotFound(f"{url}: no model is published there; expected a URL such as s3://bucket/models/movielens")
    replicas = objects.replicas()
    now_unix_ms = time.time_ns() // 1_000_000
    trial = TrialObjects(objects.model).said()
    reading = Reading(objects.model.url, objects.lease(), replicas, trial, now_unix_ms, now_unix_ms)
    peers = Peers()
    try:
        return fleet_view(name, head, reading, peers.wait(replicas), peers.serve(name, replicas))
    finally:
        peers.close()


def show(state: Mapping[str, Any]) -> None:
    """Prints everything."""
    console = table_console()
    for line in _last_known(state):
        console.print(line)
    console.print(_line(state))
    table = FittedTable(
        wrapping("replica"),
        wrapping("state"),
        whole("serves"),
        whole("staged"),
        whole("last report"),
        wrapping("asked at"),
    )
    for each in state["replicas"]:
        text = {"gone": "no answer", "unready": "not ready"}.get(each["health"], each["health"])
        # Why it cannot read the object store stands above already.
        trouble = "" if _trouble(state) and each["id"] == state["asked"] else each["trouble"]
        if not trouble and each["behind"]:
            trouble = "serves something else than the others"
        table.add_row(
            each["id"],
            f"{text}: {trouble}" if trouble else text,
            "not known" if _trouble(state) and each["serves"] is None else _name(each["serves"]),
            _name(each["staged"]),
            f"{age(each['reported_unix_ms'])} ago" if each["reported_unix_ms"] else "none",
            each["url"],
        )
    if state["replicas"]:
        console.print(table)
    if trial := state.get("live_auc"):
        console.print(
            f"trial by live AUC of {trial['snapshot']}, by {trial['by']}: {trial['verdict']}: {trial['reason']}"
        )
    for each in state["refused"]:
        for reason in each["reasons"]:
            console.print(f"refused {each['name'] or each['id']}: {reason}")


def _trouble(state: Mapping[str, Any]) -> str:
    """Returns why the object store does not answer the server that was asked; "" where it does."""
    return str(state.get("store", {}).get("error", ""))


def _last_known(state: Mapping[str, Any]) -> Iterator[str]:
    """Yields why the rest was known earlier, and where to ask instead; nothing where the object store answers."""
    if not _trouble(state):
        return
    store, asked = state["store"], state["asked"]
    yield f"{asked} has not been able to read the object store for {age(store['answered_unix_ms'])}: {store['error']}"
    read = store["replicas_unix_ms"]
    others = f"as they were read {age(read)} ago" if read else "not known here"
    yield f"Below stands what it knew then; the other replicas are {others}."
    yield f"Ask another replica, or run `emberline fleet {store['url']}`."


def _line(state: Mapping[str, Any]) -> str:
    served = state["served"]
    if served is None:
        return f"{state['model']}: no fleet serves it so far; start servers with --fleet"
    serve = "all serve"
    if _trouble(state):
        serve = "all served"
    elif any(each["behind"] for each in state["replicas"]):
        serve = "all should serve"
    elif any(each["health"] in ("unready", "gone") for each in state["replicas"]):
        serve = "all that are ready serve"
    text = f"{state['model']}: {state['mode']}, {serve} {_name(served)} ({served['id']})"
    text += f" since {age(state['since_unix_ms'])}, by {state['by']}"
    if state["newest"] and state["newest"]["id"] != served["id"]:
        text += f"; newest is {_name(state['newest'])}"
    canary = state["canary"]
    if canary is not None:
        what = _name(canary["snapshot"]) or canary["to"] or "what arrives next"
        text += f"; canary {what} for {canary['fraction']:.4g} of the requests"
    if state["held"]:
        text += f"; held: {', '.join(map(_name, state['held']))}"
    if state["lease"]["holder"]:
        text += f"; {state['lease']['holder']} commits for all"
    return text


def _name(snapshot: Mapping[str, str] | None) -> str:
    return "" if snapshot is None else snapshot["name"] or snapshot["id"]
