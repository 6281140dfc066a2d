"""Finds and erases rows in logs of served requests, by their raw values, their digests, or the ids made of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import ConfigError, InvalidInput
from storage.features import Column, FeatureEngine, FeatureSpec, InputSpec
from storage.features.arrow import column_from_arrow
from storage.features.column_types import is_list
from storage.forgetting.wanted import Wanted, why_no_values
from storage.served_log import HASHED, ID, LABEL, ROW, keyed_hash

_SUFFIX = ".parquet"
_ASIDE = ".forgetting-"


def is_log(path: Path) -> bool:
    """Returns whether a file is one of a log of served requests, or of their labels."""
    try:
        return path.suffix == _SUFFIX and {ID, ROW} <= {*pq.read_schema(path).names}
    except (OSError, ValueError, pa.ArrowException):  # another file, or one that is being written
        return False


def rows_in_log(path: Path, wanted: Wanted, spec: FeatureSpec, key: bytes = b"") -> np.ndarray:
    """Returns which rows of a file of requests lead to one of the ids, or hold one of the values, (rows,) bool.

    key: that of the digests. Raises ConfigError where digests of a wanted input are there and no key is, InvalidInput
    where they are those of values that cannot be known from the ids, and for a file that is damaged.
    """
    try:
        return _rows_in(path, _read(path), wanted, spec, key)
    except InvalidInput as error:
        raise error if str(path) in str(error) else InvalidInput(f"{path}: {error}", field=error.field) from None


def _read(path: Path, columns: list[str] | None = None) -> Any:
    """Reads a file of a log. Raises InvalidInput for one that is damaged, whose rows would count as erased."""
    try:
        table = pq.read_table(path, columns=columns)
        table.validate(full=True)  # texts too
        return table
    except FileNotFoundError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidInput(f"{path}: is a log of requests that cannot be read: {error}") from None


def _rows_in(path: Path, table: Any, wanted: Wanted, spec: FeatureSpec, key: bytes) -> np.ndarray:
    columns: dict[str, Column] = {
        entry.name: column_from_arrow(table.column(entry.source), entry)
        for entry in spec.inputs
        if entry.source in table.column_names
    }
    # Inputs that are hashed or left out take no part in features; ids are ids without their weights.
    unweighted = {"fallback": (), "weights": "", "pooling": "sum", "length": 0}
    features = [
        feature.model_copy(update=unweighted) for feature in spec.ids_features if {*feature.inputs} <= columns.keys()
    ]
    rows = table.num_rows
    holding = np.zeros(rows, np.bool_)
    if features and rows:
        used = {name for feature in features for name in feature.inputs}
        inputs = tuple(entry for entry in spec.inputs if entry.name in used)
        engine = FeatureEngine(FeatureSpec(inputs=inputs, features=tuple(features)))
        holding |= wanted.rows_holding(engine, {name: columns[name] for name in used}, rows)
    for entry in spec.inputs:
        digests = f"{entry.source}{HASHED}"
        if digests not in table.column_names or table.column(digests).null_count == rows:
            continue
        values = _hashed_values(path, wanted, spec, entry)
        if values and not key:
            raise ConfigError(
                f"{path}: the input {entry.name!r} is logged as digests; give the key that they were made with",
                field="feature_log_key",
            )
        holding |= _hold(table.column(digests), [keyed_hash(key, value) for value in values])
    return holding


def _hashed_values(path: Path, wanted: Wanted, spec: FeatureSpec, entry: InputSpec) -> frozenset[Any]:
    """Returns the values of an input to look for, which is logged as digests.

    Raises InvalidInput where it leads to ids of which the values are not known: rows of them would stay unseen.
    """
    found = wanted.values.get(entry.name, frozenset[Any]())
    for feature in spec.ids_features:
        if entry.name in feature.inputs and len(wanted.tables.get(feature.table, ())):
            values = wanted.values_behind(feature, entry)
            if values is None:
                raise InvalidInput(
                    f"{path}: the input {entry.name!r} is logged as digests, and whether some are those of ids of the "
                    f"table {feature.table!r} cannot be known: {why_no_values(feature, entry)}",
                    field=entry.name,
                )
            found |= values
    return found


def forget_in_logs(folders: Iterable[Path], wanted: Wanted, spec: FeatureSpec, key: bytes = b"") -> int:
    """Erases rows from the files of logs in folders, and their labels; returns how many. Each file is replaced whole.

    Labels go first, because the rows say which they are: a call that was killed is finished by the same call again.
    Rows that a server has not written yet come later. Raises ConfigError, OSError.
    """
    labels: list[Path] = []
    holding: dict[Path, np.ndarray] = {}
    gone: set[tuple[str, int]] = set()
    for path in _logs(folders):
        if LABEL in pq.read_schema(path).names:
            labels.append(path)
        elif (held := rows_in_log(path, wanted, spec, key)).any():
            holding[path] = held
            out = _read(path, [ID, ROW]).filter(pa.array(held))
            gone |= set(zip(out.column(ID).to_pylist(), out.column(ROW).to_pylist(), strict=True))
    for path in labels if gone else ():
        table = _read(path)
        pairs = zip(table.column(ID).to_pylist(), table.column(ROW).to_pylist(), strict=True)
        kept = np.array([pair not in gone for pair in pairs], np.bool_)
        if not kept.all():
            _replace(path, table.filter(pa.array(kept)))
    for path, held in holding.items():
        _replace(path, _read(path).filter(pa.array(~held)))
    return sum(int(held.sum()) for held in holding.values())


def _logs(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        yield from (path for path in sorted(root.rglob(f"[!.]*{_SUFFIX}")) if is_log(path))


def _hold(column: Any, digests: list[str]) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if is_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(len(column)), lengths)
        held = np.zeros(len(column), np.bool_)
        held[owners[_hold(column.flatten(), digests)]] = True
        return held
    found = pc.is_in(column, value_set=pa.array(digests, pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _replace(path: Path, table: Any) -> None:
    """Writes what is left in the place of a file; a file of which nothing is left is deleted."""
    if not table.num_rows:
        path.unlink()
        return
    aside = path.with_name(f"{_ASIDE}{path.name}")
    pq.write_table(table, aside, compression="zstd")
    handle = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.chmod(aside, path.stat().st_mode & 0o777)
    aside.rename(path)
