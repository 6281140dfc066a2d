"""`emberline predict`: rows to a running server, by KServe v1, which takes plain JSON rows with nulls and lists."""

from __future__ import annotations

import json
import sys
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.server_call import MODEL, URL, call_server, timeout_option
from storage.errors import ConfigError, InvalidInput

MAX_ROWS = 100_000
_COMPANIONS = (".lengths", ".valid")


@click.command(
    cls=Command,
    name="predict",
    epilog="""\b
Examples:
  emberline predict movielens --data build/movielens/test.parquet --rows 5
  emberline predict movielens --json '{"user": 1, "item": 7, "genres": ["Comedy"]}'""",
)
@MODEL
@URL
@click.option("--data", type=LocalPath(exists=True), help="Parquet file (or JSON lines) to take rows from.")
@click.option("--json", "text", help="One row as a JSON object, or several as a list; '-' reads standard input.")
@click.option("--rows", type=click.IntRange(1, MAX_ROWS), default=10, help="Rows to take from --data.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Rows of --data to skip first.")
@click.option("--min-snapshot", help="Wait until at least this snapshot answers: VERSION.SEQUENCE or id.")
@click.option("--routing-key", help="While a canary runs, requests of one key are all answered by the same snapshot.")
@timeout_option(30.0)
@click.option("--raw", is_flag=True, help="Print the server's JSON answer as it is.")
def command(
    model: str,
    url: str,
    data: Path | None,
    text: str | None,
    rows: int,
    skip: int,
    min_snapshot: str | None,
    routing_key: str | None,
    timeout: float,
    raw: bool,
) -> None:
    """Send rows to a running server and print one score a row. Which snapshot answered is said on standard error."""
    if (data is None) == (text is None):
        raise click.UsageError("give either --data FILE or --json ROW")
    given = {"Emberline-Min-Snapshot": min_snapshot, "Emberline-Routing-Key": routing_key}
    headers = {name: _header_text(name, value) for name, value in given.items() if value is not None}
    name = urllib.parse.quote(model, safe="")
    metadata, _ = call_server(url, f"/v2/models/{name}", timeout)
    names = [entry["name"] for entry in metadata["inputs"] if not entry["name"].endswith(_COMPANIONS)]
    instances = _from_text(text) if text is not None else _from_file(data, names, skip, rows)  # type: ignore[arg-type]
    answer, about = call_server(url, f"/v1/models/{name}:predict", timeout, {"instances": instances}, headers)
    if raw:
        click.echo(json.dumps(answer))
    else:
        for number, score in enumerate(answer["predictions"]):
            click.echo(f"{skip + number}\t{json.dumps(score)}")
    click.echo(_answered_by(about), err=True)


def _header_text(name: str, value: str) -> str:
    if not value.isprintable():
        raise InvalidInput(f"{name} must be one line of printable characters, got {value[:40]!r}", field=name)
    # HTTP headers are bytes; urllib writes them as latin-1.
    return value.encode().decode("latin-1")


def _answered_by(headers: Mapping[str, str]) -> str:
    version, sequence = headers.get("Emberline-Model-Version", "?"), headers.get("Emberline-Sequence", "?")
    return f"answered by snapshot {version}.{sequence} ({headers.get('Emberline-Snapshot', '?')})"


def _from_text(text: str) -> list[Any]:
    if text == "-":
        text = sys.stdin.read()
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--json: not JSON: {error}", field="json") from None
    return content if isinstance(content, list) else [content]


def _from_file(path: Path, names: list[str], skip: int, rows: int) -> list[dict[str, Any]]:
    if path.suffix in {".json", ".jsonl"}:
        lines = path.read_text(encoding="utf-8").splitlines()[skip : skip + rows]
        return [json.loads(line) for line in lines]
    import pyarrow.dataset

    try:
        dataset = pyarrow.dataset.dataset(path, format="parquet")
        known = set(dataset.schema.names)
        table = dataset.scanner(columns=[name for name in names if name in known]).head(skip + rows)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as Parquet: {error}", field="data") from None
    if not set(names) & known:
        raise ConfigError(
            f"{path} has none of the model's inputs {names}; its columns are {sorted(known)}", field="data"
        )
    found: list[dict[str, Any]] = table.slice(skip).to_pylist()
    if not found:
        raise ConfigError(f"{path} has {table.num_rows} rows; nothing is left after --skip {skip}", field="skip")
    return found
