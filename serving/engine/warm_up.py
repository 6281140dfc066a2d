"""Builds the requests that a session computes before its first real one, so that no caller waits for one-time work.

Without `model_warmup` in config.pbtxt these are golden requests of the version; with it, those that it describes, as
in Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.model_config.pbtxt import data_type_name
from serving.model_config.queue_settings import check_range, config_error, refuse_others
from serving.protocol.binary_tensors import decode_binary_tensor
from serving.protocol.columns import to_columns
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.signature import ModelSignature
from serving.protocol.tensors import WireTensor, checked_shape
from storage.checkpoint import Golden
from storage.errors import ConfigError, InvalidInput, ReadError
from storage.features import Column

FOLDER = "warmup"
MAX_COUNT = 10_000
MAX_FILE_BYTES = 64 << 20
_FIELDS = ("name", "batch_size", "inputs", "count")
_INPUT_FIELDS = ("data_type", "dims", "zero_data", "random_data", "input_data_file")
_GOLDEN_ROWS = (1, 64)


@dataclass(frozen=True)
class WarmUp:
    """Is a request that a session computes `count` times."""

    #: For messages.
    name: str
    columns: dict[str, Column]
    batch: int
    count: int = 1


def golden_warm_ups(golden: Golden) -> list[WarmUp]:
    """Returns golden requests as warm-ups: a single row, and a batch."""
    found = []
    for rows in sorted({min(rows, golden.batch) for rows in _GOLDEN_ROWS} - {0}):
        columns = {
            name: column.slice(0, rows) if column.rows == golden.batch else column
            for name, column in golden.columns.items()
        }
        found.append(WarmUp(f"golden requests, {rows} row(s)", columns, rows, 2))
    return found


def read_warm_ups(model_warmup: Any, signature: ModelSignature, model_dir: Path) -> list[WarmUp]:
    """Reads the requests of `model_warmup`; files are in model_dir/warmup. Raises ConfigError naming the field."""
    return [_read(f"model_warmup[{index}]", entry, signature, model_dir) for index, entry in enumerate(model_warmup)]


def _read(where: str, entry: Any, signature: ModelSignature, model_dir: Path) -> WarmUp:
    refuse_others(entry, _FIELDS, f"{where}.")
    batch = entry.batch_size or 1
    check_range(f"{where}.batch_size", batch, 1, signature.max_batch_size)
    check_range(f"{where}.count", entry.count, 0, MAX_COUNT)
    rng = np.random.default_rng(0)
    tensors: dict[str, WireTensor] = {}
    for name in sorted(entry.inputs):
        field = f"{where}.inputs[{name!r}]"
        try:
            declared = signature.input(name)
            tensors[name] = _tensor(field, name, entry.inputs[name], batch, model_dir, rng)
            declared.check_dtype(tensors[name].dtype)
        except InvalidInput as error:
            raise config_error(field, str(error)) from None
    try:
        columns, rows = to_columns(signature, tensors)
    except InvalidInput as error:
        raise config_error(f"{where}.inputs", str(error)) from None
    return WarmUp(entry.name or where, columns, rows, entry.count or 1)


def _tensor(field: str, name: str, given: Any, batch: int, model_dir: Path, rng: np.random.Generator) -> WireTensor:
    refuse_others(given, _INPUT_FIELDS, f"{field}.")
    dtype = _dtype(field, given.data_type)
    shape, count = checked_shape(name, [batch, *given.dims])
    wire = WIRE_TYPES[dtype]
    if max(wire.item_bytes, 4) * count > MAX_FILE_BYTES:
        raise config_error(field, f"{list(shape)} is over {MAX_FILE_BYTES} bytes")
    kind = given.WhichOneof("input_data_type")
    if kind == "input_data_file":
        data = _file(field, model_dir, given.input_data_file)
    elif wire.item_bytes == 0:
        word = b"" if kind == "zero_data" else rng.bytes(4).hex().encode()
        data = (len(word).to_bytes(4, "little") + word) * count
    elif kind == "zero_data":
        data = bytes(wire.item_bytes * count)
    elif kind == "random_data":
        kinds = np.dtype(wire.numpy)
        values = (
            rng.random(count) if kinds.kind == "f" else rng.integers(0, 2 if kinds.kind == "b" else 2**31 - 1, count)
        )
        data = values.astype(kinds).tobytes()
    else:
        raise config_error(field, "needs zero_data, random_data or input_data_file")
    return decode_binary_tensor(name, dtype, shape, count, data)


def _dtype(field: str, number: int) -> str:
    name = data_type_name(number)
    if name not in WIRE_TYPES:
        known = ", ".join(wire.config for wire in WIRE_TYPES.values())
        raise config_error(f"{field}.data_type", f"is {name}, expected one of {known}")
    return name


def _file(field: str, model_dir: Path, name: str) -> bytes:
    path = model_dir / FOLDER / name
    if Path(name).name != name:
        raise config_error(f"{field}.input_data_file", f"is {name[:100]!r}, expected the name of a file in {FOLDER}/")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise config_error(f"{field}.input_data_file", f"{path} has over {MAX_FILE_BYTES} bytes")
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise config_error(f"{field}.input_data_file", f"{path}: {error.strerror}") from None
    except OSError as error:
        raise ReadError(f"{path}: cannot be read now: {error.strerror}; try again") from error


def failed(warm_up: WarmUp, error: BaseException) -> ConfigError:
    """Returns the error of a session that could not warm up."""
    return config_error("model_warmup", f"{warm_up.name}: {error}")
