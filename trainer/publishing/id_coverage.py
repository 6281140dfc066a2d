"""Finds which raw rows reach which ids, with the feature engine. B rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from storage.checkpoint import DeltaTable
from storage.features import FeatureBatch, FeatureEngine
from trainer.publishing.lookup_half import LiveRows, find_rows


def rows_holding(batch: FeatureBatch, engine: FeatureEngine, table: str, ids: np.ndarray) -> np.ndarray:
    """Returns, for each of `ids` (ascending) that the batch holds, one row that holds it."""
    found = [np.empty(0, np.int64)]
    for feature in engine.spec.ids_features:
        if feature.table == table:
            bags = batch.ids[feature.name]
            rows = np.repeat(np.arange(batch.batch), bags.lengths())
            here = _among(bags.values, ids)
            _, first = np.unique(bags.values[here], return_index=True)
            found.append(rows[here][first])
    return np.unique(np.concatenate(found))


def reached(batch: FeatureBatch, engine: FeatureEngine, changed: Sequence[DeltaTable]) -> tuple[np.ndarray, int]:
    """Returns which rows hold a changed id, (B,) bool, and how many different changed ids they hold."""
    reaching = np.zeros(batch.batch, dtype=bool)
    count = 0
    for table in changed:
        met = [np.empty(0, np.int64)]
        for feature in engine.spec.ids_features:
            if feature.table == table.name and len(table.ids):
                bags = batch.ids[feature.name]
                here = _among(bags.values, table.ids)
                reaching[np.repeat(np.arange(batch.batch), bags.lengths())[here]] = True
                met.append(bags.values[here])
        count += len(np.unique(np.concatenate(met)))
    return reaching, count


def missed_tables(batch: FeatureBatch, engine: FeatureEngine, tables: Mapping[str, LiveRows]) -> list[LiveRows]:
    """Returns the tables with rows that no id of the batch reaches."""
    missed: list[LiveRows] = []
    for name, table in tables.items():
        if name in engine.spec.mean_tables:
            continue
        features = [feature.name for feature in engine.spec.ids_features if feature.table == name]
        if table.size() and not any(find_rows(table, batch.ids[feature].values)[1].any() for feature in features):
            missed.append(table)
    return missed


def _among(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns whether each of `values` is one of `ids` (ascending, not empty)."""
    places = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
    here: np.ndarray = ids[places] == values
    return here
