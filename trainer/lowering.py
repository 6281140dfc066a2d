"""Lowers features of tables that hash, divide or combine to features of plain tables of rows.

What a server does for such a feature is then what it does for any: it computes ids and looks them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from storage.features.fallback import MEAN
from storage.features.feature import Feature
from storage.features.spec import FeatureSpec
from trainer.row_tables import Combination
from trainer.table_config import AnyTableConfig


@dataclass(frozen=True)
class CombinedFeature:
    """A feature whose rows are made of those of several features."""

    name: str
    #: The table as it is declared; features of one table share what combines them.
    table: str
    #: The features of the parts, in their order.
    parts: tuple[str, ...]
    combination: Combination
    #: D of the combined rows.
    dim: int


@dataclass(frozen=True)
class Lowered:
    """The features of plain tables, and which of them belong together."""

    spec: FeatureSpec
    combined: tuple[CombinedFeature, ...]


def lower(spec: FeatureSpec, tables: Sequence[AnyTableConfig]) -> Lowered:
    """Lowers the features of a spec. tables: all that it names. Raises ValueError, naming the table or the feature."""
    names = [part.rows.name for table in tables for part in table.parts()]
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"tables: two are called {name!r}, of which one is a part of another table; rename one")
    declared = {table.name: table for table in tables}
    features: list[Feature] = []
    combined: list[CombinedFeature] = []
    for feature in spec.features:
        if feature.output != "ids":
            features.append(feature)
            continue
        table = declared[feature.table]
        made = [
            feature.model_copy(
                update={
                    "name": feature.name + part.suffix,
                    "table": part.rows.name,
                    "transforms": feature.transforms + part.transforms,
                }
            )
            for part in table.parts()
        ]
        features += made
        if len(made) == 1:
            continue
        if feature.fallback:
            raise ValueError(
                f"feature {feature.name!r}: fallback: its table {table.name!r} is made of several, for whose rows no "
                "row of another one can stand; use a table of the kind dynamic, static or hashed"
            )
        if feature.absent is not None:
            raise ValueError(
                f"feature {feature.name!r} has `absent`, but its table {table.name!r} is made of several; an absent "
                "row is for tables of the kinds dynamic, static and hashed"
            )
        if table.combination == "mult":
            _check_single(spec, feature)
        names = [each.name for each in made]
        combined.append(CombinedFeature(feature.name, table.name, tuple(names), table.combination, table.width))
    _check_chains(spec, declared)
    try:
        return Lowered(FeatureSpec(inputs=spec.inputs, features=tuple(features)), tuple(combined))
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"features of the parts of tables: {message}") from None


def _check_chains(spec: FeatureSpec, declared: Mapping[str, AnyTableConfig]) -> None:
    """Raises ValueError, naming the feature, for a level whose rows are not as those of the feature."""
    for feature in spec.ids_features:
        own = declared[feature.table]
        for place, level in enumerate(feature.fallback):
            table = declared[spec.feature(level).table] if level != MEAN else own
            where = f"feature {feature.name!r}: fallback[{place}]: {level!r} looks up the table {table.name!r}, "
            if len(table.parts()) > 1:
                raise ValueError(f"{where}which is made of several; a level needs one of the kind dynamic or hashed")
            if table.width != own.width:
                raise ValueError(
                    f"{where}whose rows have {table.width} values, those of {own.name!r} have {own.width}; give both "
                    "tables one dim"
                )
    names = {part.rows.name for table in declared.values() for part in table.parts()}
    if taken := sorted(names & set(spec.mean_tables)):
        raise ValueError(f"tables: {taken[0]!r} is the name of the mean of another table; rename the table")


def _check_single(spec: FeatureSpec, feature: Feature) -> None:
    # The product of sums is not the sum of products.
    most = spec.flow(feature.name).high
    if feature.pooling == "none" or (feature.pooling in ("sum", "mean") and most <= 1):
        return
    what = "weighs its ids" if feature.pooling == "weighted" else f"pools up to {most:,} ids"
    raise ValueError(
        f"feature {feature.name!r} {what}, and the table {feature.table!r} multiplies the rows of an id before they "
        "are pooled; use combine: add or concat, or pooling none"
    )
