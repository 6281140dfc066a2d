"""Measures on data how many values a hash into buckets maps to the same id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from storage.errors import InvalidInput
from storage.features.columns import Column
from storage.features.engine import FeatureEngine
from storage.features.feature import Feature
from storage.features.spec import FeatureSpec
from storage.features.transforms import Cross, Hash


@dataclass(frozen=True, slots=True)
class CollisionReport:
    """Counts the distinct values of one feature before and after its buckets."""

    feature: str
    buckets: int
    before: int
    after: int

    @property
    def rate(self) -> float:
        """The share of distinct values that have no id of their own."""
        return 0.0 if self.before == 0 else (self.before - self.after) / self.before

    @property
    def expected_rate(self) -> float:
        """The rate of a perfectly random hash: n values leave m * (1 - (1 - 1/m)^n) ids."""
        if self.before == 0:
            return 0.0
        left = -self.buckets * np.expm1(self.before * np.log1p(-1.0 / self.buckets)) if self.buckets > 1 else 1.0
        return float(max(0.0, 1.0 - left / self.before))

    def __str__(self) -> str:
        return (
            f"{self.feature}: {self.before:,} values in {self.buckets:,} buckets, {self.after:,} ids, "
            f"{self.rate:.2%} collide ({self.expected_rate:.2%} expected)"
        )


def collision_report(
    spec: FeatureSpec | FeatureEngine, columns: Mapping[str, Column], batch: int
) -> list[CollisionReport]:
    """Returns one report for each feature with buckets.

    `before` counts 63-bit hashes, which do not collide in practice. columns: as for FeatureEngine.run, of the whole
    data or a sample. Raises InvalidInput.
    """
    engine = spec if isinstance(spec, FeatureEngine) else FeatureEngine(spec)
    with_buckets = [(feature, buckets) for feature in engine.spec.ids_features if (buckets := _buckets(feature))]
    if not with_buckets:
        return []
    # The same features, cut directly after the hash: once without its buckets, once with them.
    wide, narrow = ([_upto_hash(feature, keep) for feature, _ in with_buckets] for keep in (False, True))
    before = _distinct(engine.spec, wide, columns, batch)
    after = _distinct(engine.spec, narrow, columns, batch)
    return [
        CollisionReport(feature.name, buckets, before[feature.name], after[feature.name])
        for feature, buckets in with_buckets
    ]


def _buckets(feature: Feature) -> int:
    return next((op.buckets for op in feature.transforms if isinstance(op, Hash | Cross) and op.buckets), 0)


def _upto_hash(feature: Feature, keep_buckets: bool) -> Feature:
    ops = list(feature.transforms)
    last = next(place for place, op in enumerate(ops) if isinstance(op, Hash | Cross) and op.buckets)
    if not keep_buckets:
        ops[last] = ops[last].model_copy(update={"buckets": None})
    return feature.model_copy(
        update={"transforms": tuple(ops[: last + 1]), "pooling": "sum", "length": 0, "weights": "", "fallback": ()}
    )


def _distinct(spec: FeatureSpec, features: list[Feature], columns: Mapping[str, Column], batch: int) -> dict[str, int]:
    used = {name for feature in features for name in feature.inputs}
    for name in columns:
        if name not in {entry.name for entry in spec.inputs}:
            raise InvalidInput(f"unknown input {name!r}", field=name)
    inputs = tuple(entry for entry in spec.inputs if entry.name in used)
    engine = FeatureEngine(FeatureSpec(inputs=inputs, features=tuple(features)))
    found = engine.run({name: column for name, column in columns.items() if name in used}, batch)
    return {name: len(np.unique(jagged.values)) for name, jagged in found.ids.items()}
