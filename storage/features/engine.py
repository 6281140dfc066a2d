"""The feature engine turns raw columns into ids and dense features by the C++ program of a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from storage._features import Batch, BlockLayout
from storage.errors import InvalidInput
from storage.features.batch import FeatureBatch
from storage.features.columns import Array, Column
from storage.features.dtypes import DTYPES
from storage.features.fallback import check_parallel
from storage.features.flat import FlatColumns, Layout, plain_blocks
from storage.features.program import build_program
from storage.features.spec import FeatureSpec
from storage.features.strict_model import did_you_mean

_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


class FeatureEngine:
    """Runs a spec. Thread-safe. A run holds the GIL only at its beginning and its end."""

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        self._program = build_program(spec)
        self._inputs = tuple(entry.name for entry in spec.inputs)
        self._known = frozenset(self._inputs)
        self._never_null = frozenset(entry.name for entry in spec.inputs if entry.nulls == "error")
        self._ids = tuple(feature.name for feature in spec.features if feature.output != "dense")
        self._groups = tuple(spec.dense_groups)
        # Features whose ids without a row read rows of lists beside theirs, and those lists.
        self._parallel = {
            feature.name: levels for feature in spec.ids_features if (levels := spec.parallel_levels(feature.name))
        }
        # Replaced entries are equal, so threads that make one at the same time need no lock.
        self._layouts: WeakKeyDictionary[Layout, BlockLayout] = WeakKeyDictionary()

    def run(self, columns: Mapping[str, Column], batch: int) -> FeatureBatch:
        """Transforms `batch` rows. Inputs of side "user" may have one row, which applies to all rows.

        The arrays of the result are new. Raises InvalidInput whose field is the input at fault.
        """
        return self.run_joined([(columns, batch)])

    def run_joined(self, requests: Sequence[tuple[Mapping[str, Column], int]]) -> FeatureBatch:
        """Transforms the rows of several requests, one behind the other, as `run` does those of one.

        `can_join` is true of each request and the first. Raises InvalidInput, which does not say whose input it is.
        """
        columns = requests[0][0]
        if isinstance(columns, FlatColumns) and columns.layout.is_plain:
            blocks = plain_blocks(requests, columns.layout)
            if blocks is not None:
                return self._made(self._program.run_blocks(self._layout(columns.layout), *blocks))
        return self._made(self._program.run([(self._given(each), batch) for each, batch in requests]))

    def run_arrow(self, rows: tuple[object, object], places: Sequence[int | Column | None]) -> FeatureBatch:
        """Transforms the rows of a RecordBatch of pyarrow, given as the capsules of its `__arrow_c_array__`.

        places: for each input the number of its column, a column that was made of it, or None. See
        `storage.features.arrow_rows`, which knows the types that are read in place.
        """
        for name, place in zip(self._inputs, places, strict=True):
            if name in self._never_null and isinstance(place, Column) and place.valid is not None:
                _refuse_null(name, place.valid, place.rows)
        return self._made(self._program.run_arrow(rows, list(places)))

    def _made(self, native: Batch) -> FeatureBatch:
        made = FeatureBatch.of(native, self._groups, self._ids)
        for name, levels in self._parallel.items():
            check_parallel(name, made.ids[name], {level: made.ids[level] for level in levels})
        return made

    def _given(self, columns: Mapping[str, Column]) -> list[Column | None]:
        """Returns the column of each input, or None."""
        given = [columns.get(name) for name in self._inputs]
        if self._never_null or len(given) - given.count(None) != len(columns):
            self._check(columns)
        return given

    def _check(self, columns: Mapping[str, Column]) -> None:
        for name, column in columns.items():
            if name not in self._known:
                raise self._unknown(name)
            if column.valid is not None and name in self._never_null:
                _refuse_null(name, column.valid, column.rows)

    def _unknown(self, name: str) -> InvalidInput:
        return InvalidInput(f"unknown input {name!r}{did_you_mean(name, self._known)}", field=name)

    def _layout(self, layout: Layout) -> BlockLayout:
        """Returns a plain layout as the program reads it."""
        known = self._layouts.get(layout)
        if known is None:
            for column in layout.columns:
                if column.name not in self._known:
                    raise self._unknown(column.name)
            known = self._layouts[layout] = BlockLayout(
                [(self._inputs.index(entry.name), _CODES[entry.dtype], entry.width) for entry in layout.columns],
                len(self._inputs),
            )
        return known


def _refuse_null(name: str, valid: Array, rows: int) -> None:
    places = np.flatnonzero(~valid.view(np.bool_))
    if len(places):
        row = int(places[0]) * rows // len(valid)
        raise InvalidInput(
            f"input {name!r}, row {row}: null; send a value, this model has none for null (`nulls: error` in its spec)",
            field=name,
        )
