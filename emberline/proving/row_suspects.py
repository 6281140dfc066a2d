"""Finds single rows that the old server has otherwise, has not, or has alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emberline.proving.batches import Batch
from emberline.proving.changes import Change, Hypothesis
from emberline.proving.comparison import Comparison
from emberline.proving.experiments import Ask, Place, places, repeated
from emberline.proving.local_model import LocalModel
from emberline.proving.transports import ServerFault
from storage.errors import InvalidInput
from storage.features import FeatureBatch, Jagged

# Values of a feature that are put into a request, of requests that differ and of others.
_ASKED, _CONTROLS = 512, 32


def suspects(
    model: LocalModel,
    features: FeatureBatch,
    row_of: Callable[[int], Batch],
    here: Comparison,
    change: Change,
    score: Callable[[Change], Comparison],
    ask: Ask,
    equal: np.ndarray,
) -> Hypothesis | None:
    """Returns the hypothesis about single rows of a table; None without one.

    Of a feature, those ids are suspects that occur in requests that differ and in no other. They have to explain every
    difference. A request that is equal has to differ when the feature's values of such a request are put into it, and
    not with those of others; only requests that were confirmed so count as explained. equal: the requests that are
    equal without being explained, (B,) bool.
    """
    if not equal.any():
        return None
    base = row_of(int(np.flatnonzero(equal)[0]))
    for place in places(model.spec):
        if place.feature not in model.tables:
            continue
        bags = features.ids[place.feature]
        rows = np.repeat(np.arange(features.batch), bags.lengths())
        bad = here.differs[rows]
        ids = np.setdiff1d(bags.values[bad], bags.values[~bad])
        explains = np.zeros(features.batch, bool)
        explains[rows[np.isin(bags.values, ids)]] = True
        if not len(ids) or (here.differs & ~explains).any():
            continue
        shift, table = (
            change.shifts.get(place.feature, 0),
            change.tables.get(place.feature, model.tables[place.feature]),
        )
        if model.rows[table].find(ids + shift)[1].any():
            gone = Change(missing={table: frozenset((ids + shift).tolist())})
            if score(gone).count == 0:
                text = f"has no row in table {table} for {_shown(ids)} of {place.feature}"
                return Hypothesis(gone, f"{text}: rows that are newer here, or missing there", about=place.feature)
        confirmed = _confirmed(base, place, bags, (here.differs, equal), row_of, ask)
        if not len(confirmed):
            continue
        known = bags.values[np.isin(rows, confirmed)]
        of_one = np.isin(known, ids).sum() == len(confirmed)
        ids = np.intersect1d(known, ids)
        shown = _shown(ids) if of_one else f"some of {_shown(ids)}"
        if not model.rows[table].find(ids + shift)[1].any():
            text = f"has rows in table {table} for {shown} of {place.feature} that have none here: missing rows"
        else:
            text = f"has other values in table {table} for {shown} of {place.feature}: stale or newer rows"
        return Hypothesis(Change(), text, about=place.feature, rows=frozenset(confirmed.tolist()))
    return None


def _confirmed(
    base: Batch,
    place: Place,
    bags: Jagged,
    seen: tuple[np.ndarray, np.ndarray],
    row_of: Callable[[int], Batch],
    ask: Ask,
) -> np.ndarray:
    """Returns the requests whose values of a feature make a request differ that is equal; none where the values of
    requests that are equal do so, too.

    Raw values are exchanged, so that a feature may be computed from them in any way.
    """
    differs, equal = seen
    same: dict[bytes, list[int]] = {}
    for number in range(len(differs)):
        key = bags.values[bags.offsets[number] : bags.offsets[number + 1]].tobytes()
        same.setdefault(key, []).append(number)
    shape = place.values(base).shape

    def differing(groups: list[list[int]]) -> list[list[int]]:
        values = {group[0]: place.values(row_of(group[0])) for group in groups}
        fitting = [group for group in groups if values[group[0]].shape == shape]
        if not fitting:
            return []
        asked = np.concatenate([values[group[0]] for group in fitting])
        found = ask(place.put(repeated(base, len(fitting)), asked)).differs
        return [group for group, is_other in zip(fitting, found.tolist(), strict=True) if is_other]

    suspected = [group for group in same.values() if differs[group].all()]
    controls = [group for group in same.values() if equal[group].all()]
    try:
        if differing(controls[:_CONTROLS]):
            return np.empty(0, np.int64)
        return np.array([number for group in differing(suspected[:_ASKED]) for number in group], np.int64)
    except (InvalidInput, ServerFault):
        return np.empty(0, np.int64)


def _shown(ids: np.ndarray) -> str:
    first = ", ".join(map(str, ids[:5].tolist()))
    return f"{len(ids)} ids ({first}{', ...' if len(ids) > 5 else ''})" if len(ids) > 1 else f"the id {first}"
