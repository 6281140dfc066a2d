"""Finds single rows that the old server has otherwise, has not, or has alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from emberline.proving.batches import Batch
from emberline.proving.changes import Change, Hypothesis
from emberline.proving.comparison import Comparison
from emberline.proving.experiments import Ask, Place, places, repeated
from emberline.proving.local_model import LocalModel
from emberline.proving.transports import ServerFault
from storage.errors import InvalidInput
from storage.features import FeatureBatch

_ASKED = 32


def suspects(
    model: LocalModel,
    features: FeatureBatch,
    row_of: Callable[[int], Batch],
    here: Comparison,
    change: Change,
    score: Callable[[Change], Comparison],
    ask: Ask,
) -> Hypothesis | None:
    """Returns the hypothesis about single rows that explains every row that differs; None without one.

    Of a feature, those ids are suspects that occur in requests that differ and in no other. They have to explain every
    difference, and a request that is equal has to differ when one of them is put into it, and not when another id is.
    """
    if not (~here.differs).any():
        return None
    base = row_of(int(np.flatnonzero(~here.differs)[0]))
    differ = frozenset(np.flatnonzero(here.differs).tolist())
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
        table = change.tables.get(place.feature, model.tables[place.feature])
        has_row = model.rows[table].find(ids + change.shifts.get(place.feature, 0))[1]
        if has_row.any():
            gone = Change(missing={table: frozenset((ids + change.shifts.get(place.feature, 0)).tolist())})
            if score(gone).count == 0:
                text = f"has no row in table {table} for {_shown(ids)} of {place.feature}"
                return Hypothesis(gone, f"{text}: rows that are newer here, or missing there", about=place.feature)
        controls = np.setdiff1d(bags.values, ids)
        if not _confirmed(base, place, ids, controls, ask):
            continue
        if not has_row.any():
            text = f"has rows in table {table} for {_shown(ids)} of {place.feature} that have none here: missing rows"
            return Hypothesis(Change(), text, about=place.feature, rows=differ)
        text = f"has other values in table {table} for {_shown(ids)} of {place.feature}: stale or newer rows"
        return Hypothesis(Change(), text, about=place.feature, rows=differ)
    return None


def _confirmed(base: Batch, place: Place, ids: np.ndarray, controls: np.ndarray, ask: Ask) -> bool:
    """Puts suspects, and other ids of the requests, into one request that is equal."""
    width = place.values(base).reshape(1, -1).shape[1]

    def differing(some: Sequence[int]) -> np.ndarray:
        chosen = np.asarray(some[:_ASKED], np.int64)
        values = place.values(repeated(base, len(chosen))).copy()
        values.reshape(len(chosen), width)[:, 0] = chosen
        return ask(place.put(repeated(base, len(chosen)), values)).differs

    if base[place.input].dtype.kind not in "iu":
        return False
    try:
        return bool(differing(ids.tolist()).any()) and not (len(controls) and bool(differing(controls.tolist()).any()))
    except (InvalidInput, ServerFault):
        return False


def _shown(ids: np.ndarray) -> str:
    first = ", ".join(map(str, ids[:5].tolist()))
    return f"{len(ids)} ids ({first}{', ...' if len(ids) > 5 else ''})" if len(ids) > 1 else f"the id {first}"
