"""Lookups whose rows come from elsewhere, beside those that read their own tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from storage._table import BatchLookup, TrainingTable
from trainer.embedding.owners import owners
from trainer.step import seed_step

BATCH = 50


def tables() -> list[TrainingTable]:
    return [TrainingTable(4, seed=1, admit_after=2, absent=("uniform", 0.1)), TrainingTable(3, seed=2)]


def lookup(of: list[TrainingTable]) -> BatchLookup:
    # Sum, mean, none of two, weighted; the mean reads absent ids in a way of its own.
    return BatchLookup(of, [(0, 0, 0), (0, 1, 0), (1, 2, 2), (1, 3, 0)], [None, ("constant", 0.5, 0), None, None])


def arguments(seed: int) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray | None]]:
    rng = np.random.default_rng(seed)
    offsets = [np.concatenate([[0], np.cumsum(rng.integers(0, 5, BATCH))]) for _ in range(4)]
    values = [rng.integers(-40, 40, each[-1]) for each in offsets]
    return values, offsets, [None, None, None, rng.random(len(values[3]), np.float32)]


def test_rows_that_are_given_pool_and_learn_as_those_of_the_tables() -> None:
    here, there = tables(), tables()
    for seed in range(3):
        batch = arguments(seed)
        results = []
        for own in (here, there):
            native, pooled, sequence = lookup(own), np.empty((BATCH, 11), np.float32), np.empty((BATCH, 2, 3), "f4")
            if own is here:
                native.run(*batch, BATCH, pooled, [sequence], True, 1)
            else:
                wanted = native.collect(*batch, BATCH, 1)
                rows = [np.empty((len(ids), t.dim), np.float32) for (ids, _), t in zip(wanted, own, strict=True)]
                has_row = [
                    t.lookup_counted(ids, counts, out, True)
                    for t, (ids, counts), out in zip(own, wanted, rows, strict=True)
                ]
                native.pool(rows, has_row, pooled, [sequence], 1)
            results.append((native, pooled, sequence))
        (first, *made), (second, *others) = results
        for one, other in zip(made, others, strict=True):
            np.testing.assert_array_equal(one, other)
        gradients = [np.sin(each + seed) for each in made]
        for native in (first, second):
            native.set_gradients(gradients[0], [gradients[1]], 1)
        sums = [np.empty_like(each) for each in rows]
        second.sum_gradients(sums, 1)
        # A step of 1 of plain descent takes the sum off the row.
        for place, (ids, _) in enumerate(wanted):
            before, after = np.empty_like(sums[place]), np.empty_like(sums[place])
            had = here[place].lookup_counted(ids, np.ones(len(ids), np.uint32), before, False)
            _step(here[place], first.gradients(place))
            here[place].lookup(ids, after, False)
            np.testing.assert_allclose(after, before - sums[place] * had[:, None], atol=1e-6)
            there[place].restore(*_exported(here[place]))


def _step(table: TrainingTable, gradients: object) -> None:
    from storage._table import step_tables

    step_tables([table], [[gradients]], "sgd", {"lr": 1.0}, 1)  # type: ignore[list-item]


def _exported(table: TrainingTable) -> tuple[np.ndarray, ...]:
    return table.export_rows()


def test_sums_need_the_gradients_of_every_feature() -> None:
    native, batch = lookup(tables()), arguments(0)
    wanted = native.collect(*batch, BATCH, 1)
    sums = [np.empty((len(ids), dim), np.float32) for (ids, _), dim in zip(wanted, (4, 3), strict=True)]
    with pytest.raises(ValueError, match="have not come"):
        native.sum_gradients(sums, 1)
    native.set_gradients(np.zeros((BATCH, 11), np.float32), [None], 1)
    with pytest.raises(ValueError, match="a feature has none"):
        native.sum_gradients(sums, 1)


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_ids_are_divided_evenly_whatever_they_are(ranks: int) -> None:
    for ids in (np.arange(100_000), np.arange(0, 6_400_000, 64), np.arange(-(2**63), -(2**63) + 100_000)):
        counts = np.bincount(owners(ids, ranks), minlength=ranks)
        assert counts.min() > 0.95 * len(ids) / ranks
        assert counts.max() < 1.05 * len(ids) / ranks


def test_a_step_draws_what_its_seed_says_and_keeps_nothing() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        wanted = torch.rand(5)
        waiting = len(torch.cuda._queued_calls)
        seed_step(7)
        assert torch.equal(torch.rand(5), wanted)
        assert len(torch.cuda._queued_calls) == waiting
