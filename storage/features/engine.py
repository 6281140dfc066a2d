"""The feature engine turns raw columns into ids and dense features by the C++ program of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from storage._features import BoundColumn
from storage.errors import InvalidInput
from storage.features.batch import FeatureBatch, Jagged
from storage.features.columns import Array, BytesValues, Column
from storage.features.dtypes import DTYPES
from storage.features.program import build_program
from storage.features.spec import FeatureSpec
from storage.features.strict_model import did_you_mean

_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


class FeatureEngine:
    """Runs a spec. Thread-safe, because it is immutable. A run holds the GIL only at its beginning and its end."""

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        self._program = build_program(spec)
        self._inputs = tuple(entry.name for entry in spec.inputs)
        self._known = frozenset(self._inputs)
        self._never_null = frozenset(entry.name for entry in spec.inputs if entry.nulls == "error")
        self._ids = tuple(feature.name for feature in spec.ids_features)
        self._groups = tuple(spec.dense_groups)

    def run(self, columns: Mapping[str, Column], batch: int) -> FeatureBatch:
        """Transforms `batch` rows. Inputs of side "user" may have one row, which applies to all rows.

        The arrays of the result are new. Raises InvalidInput whose field is the input at fault.
        """
        for name, column in columns.items():
            if name not in self._known:
                raise InvalidInput(f"unknown input {name!r}{did_you_mean(name, self._known)}", field=name)
            if column.valid is not None and name in self._never_null:
                _refuse_null(name, column.valid, column.rows)
        bound = [bind_column(columns[name]) if name in columns else None for name in self._inputs]
        dense, ids = self._program.run(bound, batch)
        return FeatureBatch(
            batch,
            dict(zip(self._groups, dense, strict=True)),
            {name: Jagged(*arrays) for name, arrays in zip(self._ids, ids, strict=True)},
        )


def _refuse_null(name: str, valid: Array, rows: int) -> None:
    places = np.flatnonzero(~valid.view(np.bool_))
    if len(places):
        row = int(places[0]) * rows // len(valid)
        raise InvalidInput(
            f"input {name!r}, row {row}: null; send a value, this model has none for null (`nulls: error` in its spec)",
            field=name,
        )


def bind_column(column: Column) -> BoundColumn:
    """Returns a column as the C++ engine reads it, over the same memory."""
    values: Any = column.values
    starts = ends = None
    if isinstance(values, BytesValues):
        values, starts, ends = values.data, values.starts, values.ends
    valid = column.valid
    if valid is not None and valid.dtype != np.uint8:
        valid = valid.view(np.uint8)
    return BoundColumn(_CODES[column.dtype], column.rows, column.width, values, starts, ends, column.offsets, valid)
