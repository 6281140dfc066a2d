"""Converts tensors to raw columns: applies lengths, validity and JSON nulls, and finds the batch of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from serving.protocol.signature import LENGTHS, VALID, ModelSignature
from serving.protocol.tensors import WireTensor
from storage.errors import InvalidInput
from storage.features import BytesValues, Column, InputSpec, column_from_rows
from storage.features.python_rows import column_rows


def to_columns(
    signature: ModelSignature, tensors: Mapping[str, WireTensor], outputs: Sequence[str] = ()
) -> tuple[dict[str, Column], int]:
    """Returns the columns of a request and its batch.

    outputs: those that the request names; inputs that none of them needs may be missing, and a row stands in for them.

    The batch is that of the item side; user-side inputs may have one row instead. Raises InvalidInput naming the input
    that is missing, has another shape, or another batch than the rest, and when the batch is over the model's limit.
    """
    columns: dict[str, Column] = {}
    batch, first = -1, ""
    users: list[InputSpec] = []
    left_out: list[InputSpec] = []
    for raw in signature.raw:
        tensor = tensors.get(raw.name)
        if tensor is None:
            _refuse_missing(signature, raw, tensors, outputs)
            if raw.missing == "error":
                left_out.append(raw)
            continue
        rows = tensor.shape[0] if tensor.shape else 0
        # If one dimension is 0, any size of the other fits the received bytes: both are bounded before they are used.
        signature.check_batch(rows)
        if raw.side == "item":
            if batch == -1:
                batch, first = rows, raw.name
            elif rows != batch:
                raise _batch_error(raw.name, rows, first, batch)
        else:
            users.append(raw)
        build = _list_column if raw.kind == "list" else _fixed_column
        columns[raw.name] = build(raw, tensor, tensors.get(raw.name + LENGTHS), tensors.get(raw.name + VALID))
    if batch == -1:
        batch = max((columns[raw.name].rows for raw in users), default=0)
        first = next((raw.name for raw in users if columns[raw.name].rows == batch), "")
    for raw in users:
        rows = columns[raw.name].rows
        if rows not in (1, batch):
            raise _batch_error(raw.name, rows, first, batch)
    if not columns:
        raise InvalidInput("the request holds no input", field="inputs")
    signature.check_batch(batch)
    for raw in left_out:
        columns[raw.name] = _repeated(raw, signature.stand_ins[raw.name], 1 if raw.side == "user" else batch)
    return columns, batch


def _repeated(raw: InputSpec, row: Column, count: int) -> Column:
    if count == 1:
        return row
    entry = raw.model_copy(update={"dtype": row.dtype})
    return column_from_rows(entry, column_rows(row) * count)


def _refuse_missing(
    signature: ModelSignature, raw: InputSpec, tensors: Mapping[str, WireTensor], outputs: Sequence[str]
) -> None:
    for companion in (raw.name + LENGTHS, raw.name + VALID):
        if companion in tensors:
            raise InvalidInput(f"input {companion!r} came without its input {raw.name!r}", field=raw.name)
    if raw.missing == "error" and not signature.are_without(raw.name, outputs):
        text = f"input {raw.name!r} ({raw.dtype}) is missing from the request to model {signature.model!r}"
        without = [name for name, needs in signature.needs.items() if raw.name not in needs]
        if without:
            needing = [name for name in outputs or signature.output_names if name not in without]
            text += f"; the outputs {needing} need it, a request for {without} alone does not"
        raise InvalidInput(text, field=raw.name)


def _batch_error(name: str, rows: int, first: str, batch: int) -> InvalidInput:
    return InvalidInput(f"input {name!r} has a batch of {rows}, but input {first!r} has {batch}", field=name)


def _fixed_column(raw: InputSpec, tensor: WireTensor, lengths: WireTensor | None, valid: WireTensor | None) -> Column:
    shape = tensor.shape
    if shape[1:] != (raw.width,) and not (raw.width == 1 and len(shape) == 1):
        raise InvalidInput(
            f"input {raw.name!r}: expected shape [batch, {raw.width}], got {list(shape)}", field=raw.name
        )
    present = None if tensor.nulls is None else ~tensor.nulls
    if valid is not None:
        given = _companion(raw, valid, shape[0], raw.width)
        present = given if present is None else present & given
    return Column(tensor.dtype, shape[0], raw.width, tensor.values, None, _flags(present))


def _list_column(raw: InputSpec, tensor: WireTensor, lengths: WireTensor | None, valid: WireTensor | None) -> Column:
    if len(tensor.shape) != 2:
        raise InvalidInput(
            f"input {raw.name!r}: expected shape [batch, length], got {list(tensor.shape)}", field=raw.name
        )
    rows, width = tensor.shape
    if width > raw.max_length:
        raise InvalidInput(
            f"input {raw.name!r}: lists of up to {width} values, at most {raw.max_length} are taken", field=raw.name
        )
    present = None if valid is None else _companion(raw, valid, rows, 1)
    values = tensor.values
    if lengths is None:
        counts = np.full(rows, width, np.int64)
    else:
        counts = _companion(raw, lengths, rows, 1).astype(np.int64)
        if rows and (counts.min() < 0 or counts.max() > width):
            wrong = int(counts.min() if counts.min() < 0 else counts.max())
            raise InvalidInput(
                f"input {lengths.name!r}: a length of {wrong} does not lie in 0 to {width}, the size of "
                f"{raw.name!r} {list(tensor.shape)}",
                field=lengths.name,
            )
    kept = None if lengths is None else (np.arange(width) < counts[:, None]).ravel()
    if tensor.nulls is not None:
        kept = np.ones(rows * width, np.bool_) if kept is None else kept
        values, kept, counts, present = _without_nulls(tensor, values, kept, counts, present)
    if kept is not None:
        values = values.take(kept) if isinstance(values, BytesValues) else values[kept]
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return Column(tensor.dtype, rows, 1, values, offsets, _flags(present))


def _without_nulls(
    tensor: WireTensor,
    values: np.ndarray | BytesValues,
    kept: np.ndarray,
    counts: np.ndarray,
    present: np.ndarray | None,
) -> tuple[np.ndarray | BytesValues, np.ndarray, np.ndarray, np.ndarray | None]:
    """Applies nulls in lists. A row of only nulls is null. A null in a list of floats is NaN, else it is removed.

    Training does the same.
    """
    assert tensor.nulls is not None
    rows, width = tensor.shape
    nulls = tensor.nulls & kept
    missing = nulls.reshape(rows, width).sum(axis=1)
    whole = (missing == counts) & (counts > 0)
    given = ~whole if present is None else present & ~whole
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        values = np.where(nulls, np.nan, values).astype(values.dtype)
        nulls &= np.repeat(whole, width)
        missing = np.where(whole, missing, 0)
    return values, kept & ~nulls, counts - missing, given


def _companion(raw: InputSpec, tensor: WireTensor, rows: int, width: int) -> np.ndarray:
    if tensor.shape != (rows, width) and not (width == 1 and tensor.shape == (rows,)):
        raise InvalidInput(
            f"input {tensor.name!r}: expected shape [{rows}, {width}] as {raw.name!r} has, got {list(tensor.shape)}",
            field=tensor.name,
        )
    if tensor.nulls is not None:
        raise InvalidInput(f"input {tensor.name!r}: null is not allowed here", field=tensor.name)
    assert isinstance(tensor.values, np.ndarray)
    return tensor.values


def _flags(present: np.ndarray | None) -> np.ndarray | None:
    return None if present is None else present.view(np.uint8)
