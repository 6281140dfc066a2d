"""`emberline explain`."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from emberline.ages import utc
from emberline.cli.command import Command, DataArgument, LocalPath
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.data_options import DATA_CONFIG
from emberline.cli.names import MODEL
from emberline.cli.predict import inputs_of, rows_from_file
from emberline.cli.server_call import URL, call_server, model_path, timeout_option
from emberline.fitted_table import FittedTable, wrapping
from storage.errors import InvalidInput

_TIERS = ("hbm", "overlay", "dram", "ssd", "absent")


@click.command(
    cls=Command,
    name="explain",
    epilog="""\b
Examples:
  emberline explain movielens --data build/movielens/test.parquet --row 4
  emberline explain movielens --request request.json --row 2 --json""",
)
@MODEL
@URL
@click.option(
    "--request", type=LocalPath(exists=True, dir_okay=False), help="A request as JSON, of KServe v2 or v1: its body."
)
@click.option("--data", type=DataArgument(), help="File, folder, pattern or URL of rows as the model was trained on.")
@DATA_CONFIG
@click.option("--row", type=click.IntRange(0), default=0, help="The row of the request, or of --data, from 0.")
@click.option("--min-snapshot", metavar="SNAPSHOT", help="Refuse to explain an older snapshot than this id or V.S.")
@click.option("--output", help="The output to list features by; default: the first.")
@timeout_option(60.0)
@JSON
def command(
    model: str,
    url: str,
    request: Path | None,
    data: Path | str | None,
    data_config: Path | None,
    row: int,
    min_snapshot: str | None,
    output: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Explain the score of one row: what each feature adds, where its rows lie, and which delta changed them last.

    A running server answers, from the snapshot that it serves, beside live traffic. A feature adds the score less the
    score without it: without its ids, or with zeros for its numbers.
    """
    if (request is None) == (data is None):
        raise click.UsageError("give a row: either --request FILE or --data FILE")
    body = _body(model, url, request, data, data_config, row, timeout)
    headers = {"Emberline-Min-Snapshot": min_snapshot} if min_snapshot else {}
    found, _ = call_server(url, model_path(model, "explain"), timeout, body, headers)
    if as_json:
        print_json(found)
        return
    name = output or next(iter(found["outputs"]))
    if name not in found["outputs"]:
        raise InvalidInput(f"--output {name}: the model has {', '.join(found['outputs'])}", field="output")
    _show(found, name)


def _body(
    model: str,
    url: str,
    request: Path | None,
    data: Path | str | None,
    data_config: Path | None,
    row: int,
    timeout: float,
) -> dict[str, Any]:
    if request is not None:
        try:
            body = json.loads(request.read_bytes())
        except ValueError as error:
            raise InvalidInput(f"--request {request}: not JSON: {error}", field="request") from None
        if not isinstance(body, dict):
            raise InvalidInput(f"--request {request}: expected a JSON object, the body of a request", field="request")
        return {**body, "row": row}
    metadata, _ = call_server(url, f"/v2/models/{urllib.parse.quote(model, safe='')}", timeout)
    assert data is not None
    return {"instances": rows_from_file(data, data_config, inputs_of(metadata), row, 1)}


def _show(found: Mapping[str, Any], output: str) -> None:
    snapshot = found["snapshot"]
    scores = ", ".join(f"{name} {_values(values)}" for name, values in found["outputs"].items())
    click.echo(f"{found['model']} {snapshot['name']} ({snapshot['id']}): {scores}")
    title = f"what each feature adds to {output}"
    features = FittedTable(wrapping("feature"), "adds", wrapping("of"), wrapping("ids or values"), title=title)
    for feature in sorted(found["features"], key=lambda each: -max(map(abs, each["adds"][output]))):
        adds = _values(feature["adds"][output], sign="+")
        if "ids" not in feature:
            of = f"group {feature['group']}" if "group" in feature else "integers"
            features.add_row(feature["name"], adds, of, _values(feature["values"]))
            continue
        features.add_row(feature["name"], adds, f"table {feature['table']}", _tiers(feature["ids"]))
    console = table_console()
    console.print(features)
    rows = FittedTable(wrapping("feature"), "id", wrapping("lies in"), wrapping("changed last"), title="rows")
    for feature in found["features"]:
        for entry in feature.get("ids", ()):
            rows.add_row(feature["name"], str(entry["id"]), _place(entry), _changed(entry["changed"]))
    if rows.row_count:
        console.print(rows)
    times = ", ".join(f"{stage} {value:,.0f} us" for stage, value in found["times_us"].items())
    click.echo(f"times: {times}")


def _tiers(ids: Sequence[Mapping[str, Any]]) -> str:
    counts = {tier: sum(entry["tier"] == tier for entry in ids) for tier in _TIERS}
    said = ", ".join(f"{count:,} {tier}" for tier, count in counts.items() if count)
    return f"{len(ids):,} ids{f': {said}' if said else ''}"


def _place(entry: Mapping[str, Any]) -> str:
    reads = entry.get("reads")
    instead = f", reads {reads['level']}: {reads['id']} of {reads['table']} ({reads['tier']})" if reads else ""
    return f"{entry['tier']}{instead}"


def _changed(changed: Mapping[str, Any] | None) -> str:
    if changed is None:
        return ""
    return f"{changed['name']}{' or before' if changed['or_before'] else ''} ({utc(changed['published_unix_ms'])} UTC)"


def _values(values: Sequence[float], sign: str = "") -> str:
    shown = ", ".join(f"{value:{sign}.4g}" if isinstance(value, float) else f"{value:{sign}}" for value in values[:4])
    return shown if len(values) <= 4 else f"{shown}, ... ({len(values)})"
