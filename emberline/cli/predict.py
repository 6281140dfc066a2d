"""`emberline predict`: sends rows to a running server by KServe v1, which takes plain JSON rows with nulls and
lists.
"""

from __future__ import annotations

import json
import math
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from emberline.cli.command import Command, DataArgument
from emberline.cli.console import JSON, print_json
from emberline.cli.data_options import DATA_CONFIG, advice_on_columns, data_options
from emberline.cli.names import MODEL
from emberline.cli.server_call import URL, call_server, timeout_option
from storage.errors import ConfigError, InvalidInput
from storage.features import Column, InputSpec, column_from_arrow
from storage.features.python_rows import column_rows

MAX_ROWS = 100_000
_COMPANIONS = (".lengths", ".valid")
_COLUMN = ("column", "column_type", "unit", "flatten")


@click.command(
    cls=Command,
    name="predict",
    epilog="""\b
Examples:
  emberline predict movielens --data build/movielens/test.parquet --rows 5
  emberline predict movielens --instances '{"user": 1, "item": 7, "genres": ["Comedy"]}'""",
)
@MODEL
@URL
@click.option(
    "--data",
    type=DataArgument(),
    help="File, folder, pattern or URL of rows, or JSON lines, to take rows from: by the columns that the model was "
    "trained on.",
)
@DATA_CONFIG
@click.option(
    "--instances",
    "text",
    metavar="ROWS",
    help="One row as a JSON object, or several as a list; '-' reads standard input. Times may be text.",
)
@click.option("--rows", type=click.IntRange(1, MAX_ROWS), default=10, help="Rows to take from --data.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Rows of --data to skip first.")
@click.option("--min-snapshot", help="Wait until at least this snapshot answers: VERSION.SEQUENCE or id.")
@click.option("--routing-key", help="While a canary runs, requests of one key are all answered by the same snapshot.")
@timeout_option(30.0)
@JSON
def command(
    model: str,
    url: str,
    data: Path | str | None,
    data_config: Path | None,
    text: str | None,
    rows: int,
    skip: int,
    min_snapshot: str | None,
    routing_key: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Send rows to a running server and print one score a row. Which snapshot answered is said on standard error."""
    if (data is None) == (text is None):
        raise click.UsageError("give either --data FILE or --instances ROWS")
    given = {"Emberline-Min-Snapshot": min_snapshot, "Emberline-Routing-Key": routing_key}
    headers = {name: _header_text(name, value) for name, value in given.items() if value is not None}
    name = urllib.parse.quote(model, safe="")
    metadata, _ = call_server(url, f"/v2/models/{name}", timeout)
    if data is None:
        instances = with_times(_from_text(text or ""), metadata)
    else:
        instances = rows_from_file(data, data_config, inputs_of(metadata), skip, rows)
    if not instances:
        raise InvalidInput(
            f"{'--instances' if data is None else f'--data {data}'}: there is no row to score", field="instances"
        )
    answer, about = call_server(url, f"/v1/models/{name}:predict", timeout, {"instances": instances}, headers)
    if as_json:
        print_json(answer)
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
    try:
        content = json.loads(sys.stdin.buffer.read() if text == "-" else text)
    except ValueError as error:
        raise InvalidInput(f"--instances: not JSON: {error}", field="instances") from None
    return content if isinstance(content, list) else [content]


def with_times(rows: Sequence[Any], metadata: Mapping[str, Any]) -> list[Any]:
    """Returns the rows with microseconds where an input that was trained on times has a time as text.

    metadata: of the model, as the server describes it. Raises InvalidInput naming the input and the row.
    """
    times = {
        entry["name"] for entry in metadata["inputs"] if entry.get("parameters", {}).get("column_type") == "timestamp"
    }
    return [
        {name: _microseconds(value, name, number) if name in times else value for name, value in row.items()}
        if isinstance(row, dict)
        else row
        for number, row in enumerate(rows)
    ]


def _microseconds(value: Any, name: str, row: int) -> Any:
    if isinstance(value, list):
        return [_microseconds(element, name, row) for element in value]
    if not isinstance(value, str):
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(
            f"--instances: input {name!r}, row {row}: {value[:40]!r} is no time; expected text such as "
            "'2026-01-31 10:00:00' (UTC), or microseconds since 1970",
            field=name,
        ) from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def inputs_of(metadata: Mapping[str, Any]) -> list[InputSpec]:
    """Returns the raw inputs of a model as the server describes them, with the columns that feed them."""
    found = []
    for entry in metadata["inputs"]:
        if entry["name"].endswith(_COMPANIONS):
            continue
        given = entry.get("parameters", {})
        width = entry["shape"][-1]
        content = {
            "name": entry["name"],
            "dtype": entry["datatype"],
            **({"kind": "list"} if width == -1 else {"width": width}),
            **{key: given[key] for key in _COLUMN if key in given},
        }
        try:
            found.append(InputSpec.model_validate(content))
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise InvalidInput(f"--data cannot feed the input {entry['name']!r}: {reason}", field="data") from None
    return found


def rows_from_file(
    path: Path | str, config: Path | None, inputs: Sequence[InputSpec], skip: int, rows: int
) -> list[Any]:
    """Returns rows of data by input, as JSON takes them. Raises ConfigError where none is left."""
    if isinstance(path, Path) and path.suffix in {".json", ".jsonl"}:
        return _from_json_lines(path, inputs, skip, rows)
    from storage.data import DataRows, Wanted

    with advice_on_columns():
        opened = DataRows.open(path, Wanted(inputs), data_options(config))
    chosen = opened.range(skip, skip + rows)
    if chosen.rows == 0:
        raise ConfigError(f"{path} has {opened.rows} rows; nothing is left after --skip {skip}", field="skip")
    table = chosen.read()
    columns = [_json_values(entry, column_from_arrow(table.column(entry.source), entry)) for entry in inputs]
    return [{entry.name: value for entry, value in zip(inputs, row, strict=True)} for row in zip(*columns, strict=True)]


def _from_json_lines(path: Path, inputs: Sequence[InputSpec], skip: int, rows: int) -> list[Any]:
    """Reads rows by input or by column; numbers are sent as they are."""
    names = {entry.source: entry.name for entry in inputs} | {entry.name: entry.name for entry in inputs}
    found: list[Any] = []
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"--data {path}: not UTF-8: byte {error.start} cannot be read", field="data") from None
    lines = lines[:-1] if not lines[-1].strip() else lines
    for number, line in enumerate(lines[skip : skip + rows], skip + 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidInput(f"--data {path}: line {number} is not JSON: {error}", field="data") from None
        found.append({names.get(key, key): value for key, value in row.items()} if isinstance(row, dict) else row)
    return found


def _json_values(entry: InputSpec, column: Column) -> list[Any]:
    try:
        return [_json_value(value) for value in column_rows(column)]
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"column {entry.source!r} holds bytes that are no UTF-8 ({error.reason}), which JSON cannot carry; send "
            "them as binary tensors",
            field=entry.name,
        ) from None


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(element) for element in value]
    if isinstance(value, float) and math.isnan(value):
        return None  # NaN is null, and JSON has no NaN
    return value.decode() if isinstance(value, bytes) else value
