"""Makes sample requests of a model from its golden requests."""

from __future__ import annotations

import base64
import itertools
from typing import Any

from pydantic import JsonValue

from serving.updates.live_model import LiveModel
from storage.errors import CheckpointError, NotFound, ReadError, Unavailable
from storage.features import Column
from storage.features.python_rows import column_rows

#: Rows of a sample.
SAMPLE_ROWS = 8
# Elements of a list that a sample shows at most.
_MOST_VALUES = 200


def sample(model: LiveModel) -> dict[str, JsonValue]:
    """Returns `instances`, the body of a v1 request: some golden requests of the served version, one a row.

    Raises Unavailable when nothing is served, or its golden requests cannot be read.
    """
    with model.lock:
        mount = model.default
        published = None if mount is None else mount.view.current.loaded.published
    if published is None:
        raise Unavailable(f"model {model.name!r}: {model.why_not() or 'nothing is served'}")
    try:
        golden = published.golden()
    except (CheckpointError, NotFound, ReadError) as error:
        raise Unavailable(f"model {model.name!r}: its golden requests cannot be read: {error}") from error
    rows = min(golden.batch, SAMPLE_ROWS)
    columns = {name: _values(column, rows) for name, column in golden.columns.items()}
    return {"instances": [{name: values[row] for name, values in columns.items()} for row in range(rows)]}


def _values(column: Column, rows: int) -> list[Any]:
    """Returns the first values of a column as v1 requests have them; a column of one row stands for all rows."""
    most = _MOST_VALUES if column.is_list else column.width
    found = [_plain(value, most) for value in column_rows(column.slice(0, min(rows, column.rows)))]
    return found if column.rows > 1 else [*itertools.islice(itertools.cycle(found), rows)]


def _plain(value: Any, most: int) -> Any:
    if isinstance(value, list):
        return [_plain(each, 0) for each in value[:most]]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    return value
