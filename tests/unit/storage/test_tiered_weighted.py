"""Weighted pooling through the store: the same sums at every budget, over every tier, and with a delta on top."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.features import Jagged
from storage.specs import LookupSpec
from tests.support.storage.tier_rows import Tables, applied, budgets, make_delta, make_rows, open_store, tables_of

BATCH = 20
SPECS = (
    LookupSpec("a", "user", "weighted"),
    LookupSpec("b", "item", "mean"),
    LookupSpec("c", "item", "weighted"),
)


def bags_of(tables: Tables, rng: np.random.Generator) -> list[Jagged]:
    bags = []
    for spec in SPECS:
        pool = np.concatenate([np.array(sorted(tables[spec.table]), np.int64), rng.integers(-500, 500, 50)])
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 6, BATCH))])
        values = rng.choice(pool, offsets[-1])
        weights = rng.standard_normal(offsets[-1]).astype(np.float32) if spec.pooling == "weighted" else None
        bags.append(Jagged(values, offsets, weights))
    return bags


def wanted(tables: Tables, bags: list[Jagged]) -> list[np.ndarray]:
    results = []
    for spec, given in zip(SPECS, bags, strict=True):
        known = tables[spec.table]
        dim = len(next(iter(known.values())))
        out = np.zeros((BATCH, dim))
        for row in range(BATCH):
            places = range(given.offsets[row], given.offsets[row + 1])
            for place in places:
                found = known.get(int(given.values[place]), np.zeros(dim)).astype(np.float64)
                factor = 1 / len(places) if given.weights is None else float(given.weights[place])
                out[row] += factor * found
        results.append(out)
    return results


@pytest.mark.parametrize("budget", list(budgets(make_rows(5))))
def test_weighted_sums_are_the_same_at_every_budget(tmp_path: Path, budget: str) -> None:
    rows = make_rows(5)
    rng = np.random.default_rng(7)
    tables = tables_of(rows)
    with open_store(tmp_path / "store", rows, budgets(rows)[budget]) as store:
        plan = store.plan(SPECS)
        for _ in range(3):
            bags = bags_of(tables, rng)
            for got, want in zip(plan.lookup(BATCH, bags).outputs, wanted(tables, bags), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            store.drain()
        delta = make_delta(tables, {"user": 4, "item": 8}, rng)
        mask = 1 << store.stage(delta)
        after = applied(tables, delta)
        bags = bags_of(after, rng)
        for shown, known in ((mask, after), (0, tables)):
            for got, want in zip(plan.lookup(BATCH, bags, mask=shown).outputs, wanted(known, bags), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_weighted_feature_needs_a_weight_for_each_id(tmp_path: Path) -> None:
    rows = make_rows(5)
    with open_store(tmp_path / "store", rows, None) as store:
        plan = store.plan([LookupSpec("a", "user", "weighted")])
        ids, offsets = np.arange(3), np.array([0, 1, 3])
        for weights in (None, np.ones(2, np.float32)):
            with pytest.raises((TypeError, ValueError), match="weights"):
                plan.lookup(2, [Jagged(ids, offsets, weights)])
        result = plan.lookup(2, [Jagged(ids, offsets, np.zeros(3, np.float32))])
        assert not result.outputs[0].any()
