"""Runs the feature engine over tables of Arrow, whose memory it reads in place, and gives their columns when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from storage.features.arrow import column_from_arrow
from storage.features.batch import FeatureBatch
from storage.features.column_types import is_list
from storage.features.columns import Column
from storage.features.engine import FeatureEngine

if TYPE_CHECKING:
    from storage.features.feature import InputSpec


class ArrowEngine:
    """Runs an engine over tables. Thread-safe."""

    def __init__(self, engine: FeatureEngine) -> None:
        self._engine = engine
        self._inputs = engine.spec.inputs
        #: The last schema, and for each input the number of its column if the engine reads it in place.
        self._known: tuple[Any, list[int | None]] | None = None

    def run(self, table: Any) -> FeatureBatch:
        """Transforms the rows of a pyarrow Table, as `FeatureEngine.run` does with its columns.

        Raises InvalidInput naming the input at fault.
        """
        rows = _record_batch(table)
        if rows is None:
            return self._engine.run(TableColumns(table, self._inputs), table.num_rows)
        places: list[int | Column | None] = [
            column_from_arrow(rows.column(entry.source), entry) if place is None else place
            for entry, place in zip(self._inputs, self._places(rows.schema), strict=True)
        ]
        return self._engine.run_arrow(rows.__arrow_c_array__(), places)

    def _places(self, schema: Any) -> list[int | None]:
        known = self._known
        if known is None or not schema.equals(known[0]):
            places = [_place(schema, entry) for entry in self._inputs]
            known = self._known = (schema, places)
        return known[1]


class TableColumns(Mapping[str, Column]):
    """The raw columns of a pyarrow Table, by input, each made when it is first asked for."""

    def __init__(self, table: Any, inputs: tuple[InputSpec, ...]) -> None:
        self._table = table
        self._inputs = {entry.name: entry for entry in inputs}
        self._made: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        made = self._made.get(name)
        if made is None:
            entry = self._inputs[name]
            made = self._made[name] = column_from_arrow(self._table.column(entry.source), entry)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)


def _record_batch(table: Any) -> Any:
    """Returns the rows as one RecordBatch, without a copy where they lie in one piece; None where that cannot be."""
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else None


def _place(schema: Any, spec: InputSpec) -> int | None:
    place: int = schema.get_field_index(spec.source)
    return place if place >= 0 and _is_read_in_place(schema.field(place).type, spec) else None


def _is_read_in_place(kind: Any, spec: InputSpec) -> bool:
    """Returns whether the engine reads a column of this type as `column_from_arrow` would convert it."""
    if spec.nulls == "error":
        return False
    if spec.kind == "list":
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return False
        kind = kind.value_type
    if is_list(kind) or spec.width > 1:
        return False
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        return spec.dtype == "BYTES" and _is_text(kind)
    if pa.types.is_boolean(kind):
        return spec.dtype == "BOOL"
    if pa.types.is_integer(kind):
        return spec.unit is None and spec.dtype not in ("BYTES", "BOOL")
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return spec.unit is None and spec.dtype in ("FP32", "FP64")
    return spec.dtype == "BYTES" and _is_text(kind)


def _is_text(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
