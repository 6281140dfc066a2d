"""From a raw request to ids and dense features: one spec, one C++ engine, the same in trainer and server."""

from __future__ import annotations

from storage.features.batch import FeatureBatch, Jagged, concat_batches
from storage.features.collisions import CollisionReport, collision_report
from storage.features.columns import BytesValues, Column
from storage.features.engine import FeatureEngine
from storage.features.joining import can_join, is_row_by_row, join_columns
from storage.features.packing import pack_columns, unpack_columns
from storage.features.spec import Feature, FeatureSpec, InputSpec, WireInput

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
    "concat_batches",
    "is_row_by_row",
    "join_columns",
    "pack_columns",
    "unpack_columns",
]
