"""Checks the chains of fallbacks of a spec: that each level is another feature whose ids can stand for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage.features.fallback import MEAN, mean_table
from storage.features.feature import Feature, InputSpec
from storage.features.pipeline import trace
from storage.features.strict_model import did_you_mean
from storage.features.transforms import Cross, IsNull, Pad, Split, Vocabulary

# The names of tables have at most 64 characters.
_LONGEST = 64 - len(mean_table(""))


def check_chains(features: Sequence[Feature], inputs: Mapping[str, InputSpec]) -> None:
    """Raises ValueError, naming the feature, for a chain that cannot be followed."""
    by_name = {feature.name: feature for feature in features}
    for feature in features:
        if feature.fallback:
            _check_chain(feature, by_name, inputs)
    tables = {feature.table for feature in features}
    for feature in features:
        if MEAN in feature.fallback and mean_table(feature.table) in tables:
            raise ValueError(
                f"feature {feature.name!r}: fallback: the mean would be the table {mean_table(feature.table)!r}, which "
                "another feature looks up; rename that one"
            )


def _check_chain(feature: Feature, features: Mapping[str, Feature], inputs: Mapping[str, InputSpec]) -> None:
    where = f"feature {feature.name!r}: fallback"
    if MEAN in features and MEAN in feature.fallback:
        raise ValueError(f"{where}: `mean` is the mean of the table, and a feature is called so too; rename it")
    known = {each.name for each in features.values() if each.output == "ids"} - {feature.name}
    for place, level in enumerate(feature.fallback):
        if level == MEAN:
            if place + 1 < len(feature.fallback):
                raise ValueError(f"{where}[{place}]: `mean` has a row for every id, so it comes last")
            if len(feature.table) > _LONGEST:
                raise ValueError(f"{where}: the name of the table {feature.table!r} is longer than {_LONGEST}")
        elif level == feature.name or level in feature.fallback[:place]:
            raise ValueError(f"{where}[{place}]: {level!r} stands in its own chain already; each level is another one")
        elif level not in known:
            what = "gives no ids" if level in features else "is no feature"
            raise ValueError(f"{where}[{place}]: {level!r} {what}{did_you_mean(level, {*known, MEAN})}")
        else:
            _check_level(feature, features[level], inputs, f"{where}[{place}]")


def _check_level(feature: Feature, level: Feature, inputs: Mapping[str, InputSpec], where: str) -> None:
    sides = [_is_of_user(each, inputs) for each in (feature, level)]
    if sides[0] != sides[1]:
        whose = ["of the user's side" if user else "not of the user's side" for user in sides]
        raise ValueError(f"{where}: {level.name!r} is {whose[1]}, {feature.name!r} is {whose[0]}; both must be of one")
    own, given = (trace(each, [inputs[name] for name in each.inputs]) for each in (feature, level))
    if given.high <= 1:
        return
    if own.high <= 1:
        raise ValueError(
            f"{where}: {level.name!r} gives up to {given.high:,} ids, {feature.name!r} one; a level of it gives one"
        )
    for each in (feature, level):
        if not _keeps_places(each, inputs):
            raise ValueError(
                f"{where}: the ids of {level.name!r} stand for those of {feature.name!r} one by one, so both come from "
                "one list (kind: list), without cross, is_null, pad, split and vocabulary with `unknown: absent`; "
                f"{each.name!r} does not"
            )
    if level.pooling == "none" and not (feature.pooling == "none" and feature.length <= level.length):
        raise ValueError(f"{where}: {level.name!r} is cut to {level.length} ids, {feature.name!r} may have more")


def _is_of_user(feature: Feature, inputs: Mapping[str, InputSpec]) -> bool:
    return all(inputs[name].side == "user" for name in (*feature.inputs, *filter(None, [feature.weights])))


def _keeps_places(feature: Feature, inputs: Mapping[str, InputSpec]) -> bool:
    drops = any(
        isinstance(op, Cross | IsNull | Pad | Split) or (isinstance(op, Vocabulary) and op.unknown == "absent")
        for op in feature.transforms
    )
    return not drops and all(inputs[name].kind == "list" for name in feature.inputs)
