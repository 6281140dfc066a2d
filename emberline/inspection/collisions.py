"""Collisions of the features that hash into a table: expected by the ids that the table has seen, measured on data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emberline.inspection.figures import TableFigures
from storage.data import DataOptions, DataRows, Wanted
from storage.features import CollisionReport, FeatureSpec, collision_report, column_from_arrow
from storage.features.feature import Feature
from storage.features.transforms import Cross, Hash

_HASH_BITS = 63


@dataclass(frozen=True)
class HashedFeature:
    """A feature whose ids are hashes."""

    feature: str
    #: None for 63-bit hashes, which do not collide in practice.
    buckets: int | None
    #: True when other features of the table hash differently, so that its ids do not tell the collisions of each.
    mixed: bool
    #: Distinct ids that the table has seen, those that wait for a row included.
    ids: int
    #: Distinct values that gave them, by the expectation of a random hash; None where it cannot be told.
    expected_values: float | None
    #: The share of these values that have no id of their own.
    expected_rate: float | None
    measured: CollisionReport | None = None


def hashed_features(spec: FeatureSpec, figures: TableFigures) -> list[HashedFeature]:
    """Returns the features that hash into a table, with what is expected of each.

    Nothing is expected where features that hash differently share the table, or where nearly every bucket is in use:
    the ids then do not tell how many values gave them.
    """
    features = [feature for feature in spec.ids_features if feature.table == figures.facts.name]
    seen = figures.rows + figures.waiting
    # Features that hash alike, such as a target and a history of items, give equal values equal ids.
    alike = len({_hashing(feature) for feature in features}) == 1
    found: list[HashedFeature] = []
    for feature in features:
        hashes = [op for op in feature.transforms if isinstance(op, Hash | Cross)]
        if not hashes:
            continue
        buckets = hashes[-1].buckets
        values, rate = _expected(seen, buckets) if alike else (None, None)
        found.append(HashedFeature(feature.name, buckets, not alike, seen, values, rate))
    return found


def _expected(ids: int, buckets: int | None) -> tuple[float | None, float | None]:
    if buckets is None:
        # n values give n - n (n - 1) / 2^64 ids on average, so as many values as ids.
        return float(ids), ids / 2.0 ** (_HASH_BITS + 1)
    if ids == 0:
        return 0.0, 0.0
    # Of a last free bucket or two nobody can say how many values it took to leave them.
    if ids > buckets - 2 * np.sqrt(buckets):
        return None, None
    # n values leave m (1 - (1 - 1/m)^n) ids of m buckets; solved for n.
    values = float(np.log1p(-ids / buckets) / np.log1p(-1.0 / buckets))
    return values, max(0.0, 1.0 - ids / values)


def measured_collisions(
    spec: FeatureSpec, tables: Sequence[str], data: Sequence[Path | str], limit: int, layout: DataOptions | None = None
) -> dict[str, CollisionReport]:
    """Counts on the first rows of files how many values share an id, by feature with buckets.

    limit: rows to read, which lie in memory at once. layout: how text is laid out. Raises ConfigError and InvalidInput
    for data that does not fit.
    """
    features = [feature for feature in spec.ids_features if feature.table in tables and _has_buckets(feature)]
    if not features:
        return {}
    read = {name for feature in features for name in feature.inputs}
    needed = read | {feature.weights for feature in features}
    inputs = tuple(entry for entry in spec.inputs if entry.name in needed)
    # Each by itself: the levels of chains may not be among them.
    alone = tuple(feature.model_copy(update={"fallback": ()}) for feature in features)
    part = FeatureSpec(inputs=inputs, features=alone)
    wanted = tuple(entry for entry in inputs if entry.name in read)
    rows = DataRows.open(list(data), Wanted(wanted), layout).range(0, limit).read()
    columns = {entry.name: column_from_arrow(rows.column(entry.source), entry) for entry in wanted}
    return {report.feature: report for report in collision_report(part, columns, rows.num_rows)}


def _hashing(feature: Feature) -> str:
    return "".join(op.model_dump_json() for op in feature.transforms if isinstance(op, Hash | Cross))


def _has_buckets(feature: Feature) -> bool:
    return any(isinstance(op, Hash | Cross) and op.buckets for op in feature.transforms)
