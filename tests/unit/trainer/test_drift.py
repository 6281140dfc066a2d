"""The watch over the loss: it is silent while nothing changes, and speaks soon after something did."""

from __future__ import annotations

import json

import numpy as np

from trainer.publishing.drift import LossDrift

BATCH = 100


def losses(mean: float, count: int, seed: int) -> list[float]:
    return np.random.default_rng(seed).normal(mean, 0.03, count).tolist()


def first_due(watch: LossDrift, values: list[float]) -> int | None:
    for number, loss in enumerate(values):
        watch.add(loss, BATCH)
        if watch.risen is not None:
            return number
    return None


def test_it_is_silent_over_noise_and_while_the_loss_falls() -> None:
    for seed in range(20):
        assert first_due(LossDrift(0.05, 2000), losses(0.4, 2000, seed)) is None
    falling = [0.6 * 0.999**number for number in range(2000)]
    assert first_due(LossDrift(0.05, 2000), falling) is None


def test_a_rise_is_noticed_within_its_window_and_reported_with_both_means() -> None:
    for seed in range(20):
        watch = LossDrift(0.05, 2000)
        assert first_due(watch, losses(0.4, 100, seed)) is None
        due = first_due(watch, losses(0.48, 200, seed + 100))
        assert due is not None
        assert due < 20  # a window of twenty batches
        assert watch.risen is not None
        before, now = watch.risen
        assert abs(before - 0.4) < 0.03
        assert now > 1.05 * before


def test_after_a_publish_the_new_level_is_the_one_to_compare_with() -> None:
    watch = LossDrift(0.05, 2000)
    first_due(watch, losses(0.4, 100, 1))
    assert first_due(watch, losses(0.48, 100, 2)) is not None
    for loss in losses(0.48, 20, 3):
        watch.add(loss, BATCH)
    watch.published()
    assert watch.risen is None
    assert first_due(watch, losses(0.48, 500, 4)) is None
    assert first_due(watch, losses(0.56, 100, 5)) is not None


def test_a_small_rise_needs_to_be_sure() -> None:
    watch = LossDrift(0.001, 800)
    assert first_due(watch, losses(0.4, 2000, 6)) is None


def test_a_commit_continues_it() -> None:
    values = losses(0.4, 60, 7) + losses(0.5, 60, 8)
    whole = LossDrift(0.05, 2000)
    due = first_due(whole, values)
    assert due is not None
    for cut in (0, 10, 25, 61):
        first, second = LossDrift(0.05, 2000), LossDrift(0.05, 2000)
        assert first_due(first, values[:cut]) is None
        second.restore(json.loads(json.dumps(first.to_json_value())))
        assert first_due(second, values[cut:]) == due - cut
    older = LossDrift(0.05, 2000)
    older.restore({})
    assert older.risen is None
