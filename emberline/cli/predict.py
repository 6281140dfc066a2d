"""`emberline predict`: rows to a running server, by KServe v1, which takes plain JSON rows with nulls and lists."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import click

from storage.errors import ConfigError, InvalidInput, Unavailable

MAX_ROWS = 100_000
_COMPANIONS = (".lengths", ".valid")


@click.command(
    name="predict",
    epilog="""\b
Examples:
  emberline predict movielens --data build/movielens/test.parquet --rows 5
  emberline predict movielens --json '{"user": 1, "item": 7, "genres": ["Comedy"]}'""",
)
@click.argument("model")
@click.option("--url", default="http://127.0.0.1:8000", help="The server's HTTP address.")
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True), help="Parquet file (or JSON lines) to take rows from."
)
@click.option("--json", "text", help="One row as a JSON object, or several as a list; '-' reads standard input.")
@click.option("--rows", type=click.IntRange(1, MAX_ROWS), default=10, help="Rows to take from --data.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Rows of --data to skip first.")
@click.option("--timeout", type=click.FloatRange(0.1), default=30.0, help="Seconds to wait for the answer.")
@click.option("--raw", is_flag=True, help="Print the server's JSON answer as it is.")
def command(
    model: str, url: str, data: Path | None, text: str | None, rows: int, skip: int, timeout: float, raw: bool
) -> None:
    """Send rows to a running server and print one score a row."""
    if (data is None) == (text is None):
        raise click.UsageError("give either --data FILE or --json ROW")
    url = url.rstrip("/")
    name = urllib.parse.quote(model, safe="")
    metadata = _call(f"{url}/v2/models/{name}", timeout)
    names = [entry["name"] for entry in metadata["inputs"] if not entry["name"].endswith(_COMPANIONS)]
    instances = _from_text(text) if text is not None else _from_file(data, names, skip, rows)  # type: ignore[arg-type]
    answer = _call(f"{url}/v1/models/{name}:predict", timeout, {"instances": instances})
    if raw:
        click.echo(json.dumps(answer))
        return
    for number, score in enumerate(answer["predictions"]):
        click.echo(f"{skip + number}\t{json.dumps(score)}")


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


def _call(address: str, timeout: float, content: object | None = None) -> Any:
    body = None if content is None else json.dumps(content).encode()
    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            text = json.loads(text)["error"]
        except (ValueError, KeyError, TypeError):
            text = text[:500]
        raise InvalidInput(f"the server answered {error.code}: {text}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error))
        reason = reason if reason.isprintable() else "it does not speak HTTP"
        raise Unavailable(
            f"no answer from {address}: {reason}; is `emberline serve` running, and is --url right?"
        ) from None
