"""Ids as traffic brings them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.dram_world import draw
from benchmarks.tiered import trained_counts
from benchmarks.traffic import Traffic, random_ids
from loadtest.popularity import REUSE_FILE, Popularity, production_reuse, uniform, zipf


def test_ids_are_unique_positive_and_follow_from_the_seed() -> None:
    ids = random_ids(10_000)
    assert ids.dtype == np.int64
    assert len(np.unique(ids)) == 10_000
    assert ids.min() > 0
    assert ids.max() > 2**62
    assert np.array_equal(ids, random_ids(10_000))
    assert not np.array_equal(ids, random_ids(10_000, seed=2))
    assert not np.array_equal(ids, np.sort(ids))


def test_zipf_draws_ranks_as_often_as_it_says() -> None:
    popularity = zipf(1000)
    ranks = popularity.ranks(np.random.default_rng(1), 200_000)
    assert ranks.min() == 0
    assert ranks.max() < 1000
    for rows in (1, 10, 100, 1000):
        assert (ranks < rows).mean() == pytest.approx(popularity.best_static(rows), abs=0.005)
    assert popularity.best_static(1) == pytest.approx(1 / (np.arange(1, 1001.0) ** -1.05).sum())
    assert popularity.best_static(0) == 0.0
    assert popularity.best_static(5000) == 1.0


def test_uniform_has_no_hot_rows() -> None:
    assert uniform(100).best_static(10) == pytest.approx(0.1)


def test_draws_do_not_come_in_the_order_of_ranks() -> None:
    ranks = zipf(1000).ranks(np.random.default_rng(1), 1000)
    assert not np.array_equal(ranks, np.sort(ranks))


def test_a_row_of_weight_nothing_is_never_drawn_behind_the_end() -> None:
    popularity = Popularity("one", np.array([1.0]))
    assert popularity.ranks(np.random.default_rng(1), 100).max() == 0


def test_production_reuse_reproduces_its_histogram() -> None:
    table = json.loads(REUSE_FILE.read_text())
    count = 400_000
    popularity = production_reuse(count)
    assert popularity.count == count
    weights = popularity.weights() * table["lookups"] / table["ids"] * count
    assert np.all(np.diff(weights) <= 1e-9)  # hottest first
    for low, high, share in table["classes"]:
        inside = (weights > low * 1.02 + 0.5) & (weights <= high * 1.02 + 0.5)
        assert weights[inside].sum() / weights.sum() == pytest.approx(share, abs=0.012)
    assert sum(share for *_, share in table["classes"]) == pytest.approx(1.0, abs=0.005)
    assert "MIT" in table["licence"]


def test_a_hot_set_can_be_replaced() -> None:
    traffic = Traffic(zipf(10_000))
    before = set(traffic.numbering[:100].tolist())
    traffic.replace_hot_set()
    assert len(before & set(traffic.numbering[:100].tolist())) < 20
    assert sorted(traffic.numbering.tolist()) == list(range(10_000))


def test_trained_counts_follow_the_traffic() -> None:
    traffic = Traffic(zipf(10_000))
    counts = trained_counts(traffic, 1000)
    by_rank = counts[traffic.numbering]
    assert np.all(np.diff(by_rank.astype(np.int64)) <= 0)
    assert by_rank[999] == 64
    assert by_rank[0] > by_rank[2000] > 0


def test_batches_name_the_same_rows_twice() -> None:
    ids = random_ids(500)
    batches = draw(ids, zipf(500), count=3, size=64)
    assert batches.ids.shape == batches.numbers.shape == (3, 64)
    assert np.array_equal(ids[batches.numbers], batches.ids)
