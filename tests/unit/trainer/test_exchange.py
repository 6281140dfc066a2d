"""Lookups whose rows come from elsewhere, beside those that read their own tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from storage._table import AskedRows, BatchLookup, TrainingTable, step_tables
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


def parts_of(ranks: int) -> list[tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray | None], int]]:
    """Cuts a batch into the parts of ranks."""
    values, offsets, weights = arguments(0)
    parts = []
    for rank in range(ranks):
        first, last = BATCH * rank // ranks, BATCH * (rank + 1) // ranks
        cuts = [slice(each[first], each[last]) for each in offsets]
        own = [None if w is None else w[cut] for w, cut in zip(weights, cuts, strict=True)]
        begins = [each[first : last + 1] - each[first] for each in offsets]
        parts.append(([v[cut] for v, cut in zip(values, cuts, strict=True)], begins, own, last - first))
    return parts


def outputs(batch: int) -> tuple[np.ndarray, list[np.ndarray]]:
    return np.empty((batch, 11), np.float32), [np.empty((batch, 2, 3), np.float32)]


def sent(values: list[np.ndarray], sizes: np.ndarray, to: int) -> np.ndarray:
    """Returns what the owners answer a rank. sizes: by asking rank and owner."""
    cuts = [slice(sizes[:to, of].sum(), sizes[: to + 1, of].sum()) for of in range(len(values))]
    return np.concatenate([each[cut] for each, cut in zip(values, cuts, strict=True)])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_of_ranks_pool_and_learn_as_those_of_one_table(ranks: int) -> None:
    """Sums of gradients are made in another order, so rows agree within rounding."""
    parts = parts_of(ranks)
    here = tables()
    there = [tables() for _ in range(ranks)]
    for _ in range(3):
        whole = lookup(here)
        pooled, sequences = outputs(BATCH)
        whole.run(*arguments(0), BATCH, pooled, sequences, True, 1)
        whole.set_gradients(np.sin(pooled), [np.sin(sequences[0])], 1)
        step_tables(here, [[whole.gradients(place)] for place in range(2)], "sgd", {"lr": 0.5}, 1)

        lookups = [lookup(own) for own in there]
        asked = [each.ask(*part, ranks, 1) for each, part in zip(lookups, parts, strict=True)]
        dims, owned = np.array([4, 3]), [AskedRows(own) for own in there]
        numbers = np.stack([each[0].reshape(ranks, 2) for each in asked])  # by asking rank, owner and table
        for rank, own in enumerate(owned):
            messages = [each[1][each[2][:rank].sum() :][: each[2][rank]] for each in asked]
            sizes = np.array([len(each) for each in messages])
            own.find(np.concatenate(messages), sizes, np.ascontiguousarray(numbers[:, rank]).reshape(-1), True, 1)
        rows = [np.empty(own.values, np.float32) for own in owned]
        for own, out in zip(owned, rows, strict=True):
            own.write(out, 1)

        results, gradients = [], []
        has_row = [own.flags() for own in owned]
        for rank, each in enumerate(lookups):
            own_pooled, own_sequences = outputs(parts[rank][3])
            each.pool(
                sent(rows, numbers @ dims, rank), sent(has_row, numbers.sum(axis=2), rank), own_pooled, own_sequences, 1
            )
            each.set_gradients(np.sin(own_pooled), [np.sin(own_sequences[0])], 1)
            sums = np.empty(each.asked_values, np.float32)
            each.sum_gradients(sums, 1)
            results.append((own_pooled, own_sequences[0]))
            gradients.append(sums)
        np.testing.assert_allclose(np.concatenate([each for each, _ in results]), pooled, atol=1e-6)
        np.testing.assert_allclose(np.concatenate([each for _, each in results]), sequences[0], atol=1e-6)
        for rank, own in enumerate(owned):
            sizes = numbers @ dims  # by asking rank and owner
            came = [each[sizes[of, :rank].sum() :][: sizes[of, rank]] for of, each in enumerate(gradients)]
            own.set_gradients(np.concatenate(came), 1)
            step_tables(there[rank], [[own.gradients(place)] for place in range(2)], "sgd", {"lr": 0.5}, 1)
    for place, table in enumerate(here):
        ids, wanted, *_ = table.export_rows()
        found = [own[place].export_rows() for own in there]
        order = np.argsort(np.concatenate([each[0] for each in found]))
        np.testing.assert_array_equal(np.concatenate([each[0] for each in found])[order], ids)
        np.testing.assert_allclose(np.concatenate([each[1] for each in found])[order], wanted, atol=1e-5)
        np.testing.assert_array_equal(
            np.concatenate([each[3] for each in found])[order], table.export_rows()[3], "counts"
        )
        for rank, (own_ids, *_) in enumerate(found):
            assert (owners(own_ids, ranks) == rank).all()


def test_what_is_cut_or_has_not_come_is_refused() -> None:
    native, batch = lookup(tables()), arguments(0)
    numbers, message, sizes = native.ask(*batch, BATCH, 1, 1)
    asked = AskedRows(tables())
    with pytest.raises(ValueError, match="the message of a rank is cut"):
        asked.find(message[: 8 * numbers.sum()], np.array([8 * numbers.sum()]), numbers, True, 1)
    with pytest.raises(ValueError, match="other bytes than `bytes` says"):
        asked.find(message[:-8], sizes, numbers, True, 1)
    sums = np.empty(native.asked_values, np.float32)
    with pytest.raises(ValueError, match="have not come"):
        native.sum_gradients(sums, 1)
    native.set_gradients(np.zeros((BATCH, 11), np.float32), [None], 1)
    with pytest.raises(ValueError, match="a feature has none"):
        native.sum_gradients(sums, 1)


def test_counts_of_any_size_arrive() -> None:
    """An id that came more often than 127 times has a count of several bytes."""
    values, offsets = [np.repeat([5, 6, 7], [127, 128, 70_000])], [np.array([0, 70_255])]
    asked = BatchLookup(one := [TrainingTable(2)], [(0, 0, 0)]).ask(values, offsets, [None], 1, 1, 1)
    owned = AskedRows(one)
    owned.find(asked[1], asked[2], asked[0], True, 1)
    assert one[0].export_rows()[3].tolist() == [127, 128, 70_000]
    assert len(asked[1]) == 32  # 3 ids, and 1 + 2 + 3 bytes of counts, filled up


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
