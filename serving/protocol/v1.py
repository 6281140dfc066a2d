"""Implements KServe v1 `:predict`: JSON by rows (`instances`) or by columns (`inputs`), with nulls and ragged lists."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np

from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.json_text import dump_json, parse_object
from serving.protocol.signature import ModelSignature
from storage.errors import InvalidInput, Unsupported
from storage.features import Column, InputSpec, column_from_rows
from storage.features.nested import joined_rows

_ABSENT = object()


def decode_predict(signature: ModelSignature, body: bytes) -> tuple[dict[str, Column], int, bool]:
    """Reads a v1 request: its columns, its batch, and whether it has rows.

    A key that is missing in a row is handled as `missing` of that input says; null is null. Raises InvalidInput, and
    Unsupported for a model that makes no features.
    """
    if not signature.raw:
        raise Unsupported(f"model {signature.model!r} (identity) answers v2 requests only")
    request = parse_object(body, what="the request")
    extra = request.keys() - {"instances", "inputs", "signature_name"}
    if extra:
        raise InvalidInput(
            f"unknown key {min(extra)[:100]!r}; expected 'instances' or 'inputs'", field=min(extra)[:100]
        )
    if ("instances" in request) == ("inputs" in request):
        raise InvalidInput("expected either 'instances' (rows) or 'inputs' (columns)", field="instances")
    by_rows = "instances" in request
    if by_rows:
        values, batch = _from_instances(signature, request["instances"])
    else:
        values, batch = _from_inputs(signature, request["inputs"])
    signature.check_batch(batch)
    columns: dict[str, Column] = {}
    for raw in signature.raw:
        rows = values.get(raw.name)
        if rows is None:
            if raw.missing == "error":
                raise InvalidInput(f"input {raw.name!r} ({raw.dtype}) is missing from the request", field=raw.name)
            continue
        columns[raw.name] = _column(raw, rows)
    return columns, batch, by_rows


def encode_predict(signature: ModelSignature, outputs: list[np.ndarray], by_rows: bool) -> bytes:
    """Encodes the answer: `predictions`, one for each row, or `outputs` by column.

    An output of width 1 is a plain number for each row.
    """
    plain = [values.reshape(values.shape[0]) if values.shape[1:] in ((), (1,)) else values for values in outputs]
    if not by_rows:
        return dump_json({"outputs": dict(zip(signature.output_names, plain, strict=True))})
    if len(plain) == 1:
        return dump_json({"predictions": plain[0]})
    lists = [values.tolist() for values in plain]
    rows = [dict(zip(signature.output_names, row, strict=True)) for row in zip(*lists, strict=True)]
    return dump_json({"predictions": rows})


def _from_instances(signature: ModelSignature, instances: Any) -> tuple[dict[str, list[Any]], int]:
    if type(instances) is not list:
        raise InvalidInput(f"'instances' must be a list of objects, got {type(instances).__name__}", field="instances")
    signature.check_batch(len(instances))
    given: set[str] = set()
    for index, row in enumerate(instances):
        if type(row) is not dict:
            raise InvalidInput(f"instances[{index}] must be an object, got {type(row).__name__}", field="instances")
        given.update(row)
    for name in given:
        _check_name(signature, name)
    values: dict[str, list[Any]] = {}
    for raw in signature.raw:
        if raw.name not in given and instances:
            continue
        rows = [row.get(raw.name, _ABSENT) for row in instances]
        if raw.missing == "error" and _ABSENT in rows:
            raise InvalidInput(
                f"input {raw.name!r} is missing from instances[{rows.index(_ABSENT)}]; send it, or null", field=raw.name
            )
        values[raw.name] = [None if row is _ABSENT else row for row in rows]
    return values, len(instances)


def _from_inputs(signature: ModelSignature, inputs: Any) -> tuple[dict[str, list[Any]], int]:
    if type(inputs) is not dict:
        raise InvalidInput(f"'inputs' must be an object of lists, got {type(inputs).__name__}", field="inputs")
    batch, first = -1, ""
    for name, rows in inputs.items():
        _check_name(signature, name)
        if type(rows) is not list:
            raise InvalidInput(f"input {name!r} must be a list with one entry a row", field=name)
    sides = {raw.name: raw.side == "item" for raw in signature.raw}
    for name, rows in inputs.items():
        if sides[name]:
            if batch not in (-1, len(rows)):
                raise InvalidInput(f"input {name!r} has {len(rows)} rows, but {first!r} has {batch}", field=name)
            batch, first = len(rows), name
    if batch == -1:
        batch = max(map(len, inputs.values()), default=0)
    for name, rows in inputs.items():
        if not sides[name] and len(rows) not in (1, batch):
            raise InvalidInput(f"input {name!r} has {len(rows)} rows, expected 1 or {batch}", field=name)
    return inputs, batch


def _check_name(signature: ModelSignature, name: str) -> None:
    if signature.input(name).role != "value":
        raise InvalidInput(f"input {name!r}: in v1 requests lists and nulls are written as they are", field=name)


def _column(raw: InputSpec, rows: list[Any]) -> Column:
    if raw.flatten:
        rows = joined_rows(rows)
    family = WIRE_TYPES[raw.dtype].family
    if family == "bytes":
        return column_from_rows(raw, [_map(row, lambda value: _from_base64(raw.name, value)) for row in rows])
    if family == "integer":
        # v1 has no dtypes: any number that fits 64 bits, signed or not, is an id.
        wide = raw.model_copy(update={"dtype": "INT64"})
        return column_from_rows(wide, [_map(row, _two_complement) for row in rows])
    return column_from_rows(raw, rows)


def _map(row: Any, change: Callable[[Any], Any]) -> Any:
    return [change(value) for value in row] if type(row) is list else change(row)


def _two_complement(value: Any) -> Any:
    return value - 2**64 if type(value) is int and 2**63 <= value < 2**64 else value


def _from_base64(name: str, value: Any) -> Any:
    if type(value) is not dict:
        return value
    try:
        if value.keys() == {"b64"}:
            return base64.b64decode(value["b64"], validate=True)
    except (ValueError, TypeError):
        pass
    raise InvalidInput(f"input {name!r}: expected a string or {{'b64': ...}}, got {str(value)[:40]!r}", field=name)
