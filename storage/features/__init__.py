"""Turns raw requests into ids and dense features by one spec and one C++ engine, the same in trainer and server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.features.arrays import column_from_jagged, column_from_numpy
from storage.features.batch import FeatureBatch, Jagged, concat_batches
from storage.features.collisions import CollisionReport, collision_report
from storage.features.columns import BytesValues, Column
from storage.features.engine import FeatureEngine
from storage.features.feature import Feature, InputSpec, WireInput
from storage.features.joining import can_join, is_row_by_row
from storage.features.packing import pack_columns, unpack_columns
from storage.features.python_rows import column_from_lists, column_from_rows
from storage.features.spec import FeatureSpec
from storage.lazy import lazy_names

if TYPE_CHECKING:
    from storage.features.arrow import column_from_arrow

__all__ = [
    "BytesValues",
    "CollisionReport",
    "Column",
    "Feature",
    "FeatureBatch",
    "FeatureEngine",
    "FeatureSpec",
    "InputSpec",
    "Jagged",
    "WireInput",
    "can_join",
    "collision_report",
    "column_from_arrow",
    "column_from_jagged",
    "column_from_lists",
    "column_from_numpy",
    "column_from_rows",
    "concat_batches",
    "is_row_by_row",
    "pack_columns",
    "unpack_columns",
]

# It loads pyarrow, which a server of HTTP and gRPC requests does not need.
__getattr__ = lazy_names(__name__, {"column_from_arrow": "storage.features.arrow"})
