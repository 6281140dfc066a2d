from __future__ import annotations

import numpy as np
import pytest

from serving.engine.live_guard import compare_scores, judge
from serving.engine.replay import Replayed
from serving.model_config.options import ModelOptions
from storage.errors import GuardError

OPTIONS = ModelOptions()
ROWS = 400


def probabilities(seed: int = 1, rows: int = ROWS, mean: float = -1.0) -> np.ndarray:
    logits = np.random.default_rng(seed).standard_normal(rows) + mean
    values: np.ndarray = 1 / (1 + np.exp(-logits))
    return values


def replayed(scores: np.ndarray, absent: int = 0) -> Replayed:
    return Replayed([scores.reshape(len(scores), -1).astype(np.float32)], 1000, absent)


def refused(now: np.ndarray, then: np.ndarray, words: str, options: ModelOptions = OPTIONS) -> None:
    with pytest.raises(GuardError, match=words):
        judge(["score"], replayed(now), replayed(then), options)


def test_the_same_scores_have_no_shift() -> None:
    scores = probabilities()
    report = judge(["score"], replayed(scores, 30), replayed(scores, 30), OPTIONS)
    (shift,) = report.shifts
    assert (shift.output, shift.psi, shift.mean_shift, shift.shift_unit) == ("score", 0.0, 0.0, "")
    assert shift.correlation == pytest.approx(1.0)
    assert (report.rows, report.skipped, report.absent_before, report.absent_after) == (ROWS, "", 0.03, 0.03)
    assert "psi 0" in str(report)


def test_an_ordinary_update_passes() -> None:
    scores = probabilities()
    noise = np.random.default_rng(2).normal(0, 0.3, ROWS)
    moved = 1 / (1 + np.exp(-(np.log(scores / (1 - scores)) + noise)))
    assert judge(["score"], replayed(scores), replayed(moved), OPTIONS).skipped == ""


@pytest.mark.parametrize("mean", [-2.0, -1.0, 0.0, 1.0])
def test_flipped_labels_are_refused_wherever_the_mean_lies(mean: float) -> None:
    scores = probabilities(mean=mean)
    refused(scores, 1 - scores, "live_guard_(max_psi|max_mean_shift|min_correlation)")


def test_each_bound_is_named_with_its_figure_and_can_be_moved() -> None:
    scores = probabilities(mean=0.0)
    refused(scores, 1 - scores, r"rank correlation -1 .*at least 0\.3 .*live_guard_min_correlation")
    shifted = np.clip(scores + 0.4, 0, 1)
    refused(scores, shifted, r"output 'score': psi [0-9.]+, at most 0\.5 is allowed \(live_guard_max_psi\)")
    loose = ModelOptions(live_guard_max_psi=1e9)
    refused(scores, shifted, r"mean_shift 0\.\d+, at most 0\.15 .*live_guard_max_mean_shift", loose)
    none = ModelOptions(live_guard_max_psi=1e9, live_guard_max_mean_shift=1, live_guard_min_correlation=-1)
    assert judge(["score"], replayed(scores), replayed(1 - scores), none).shifts[0].correlation == pytest.approx(-1)


def test_the_stability_index_is_the_textbooks() -> None:
    now = np.linspace(0, 1, 1000, endpoint=False) + 0.0005
    then = np.where(np.arange(1000) < 500, 0.05, now)  # the lower half falls into the first decile
    shift = compare_scores("score", now, then, 64)
    assert shift is not None
    shares_now = np.full(10, 100.5) / 1005
    shares_then = np.array([500.5, 0.5, 0.5, 0.5, 0.5, 100.5, 100.5, 100.5, 100.5, 100.5]) / 1005
    expected = float(((shares_then - shares_now) * np.log(shares_then / shares_now)).sum())
    assert shift.psi == pytest.approx(expected, rel=1e-9)


def test_a_constant_candidate_is_refused_and_a_constant_present_is_not_compared() -> None:
    scores = probabilities()
    loose = ModelOptions(live_guard_max_psi=1e9)
    refused(scores, np.full(ROWS, scores.mean()), "rank correlation 0 ", loose)
    report = judge(["score"], replayed(np.full(ROWS, 0.5)), replayed(scores), OPTIONS)
    assert "different scores" in report.skipped


def test_the_same_request_over_and_over_is_no_distribution() -> None:
    few = np.tile(probabilities(rows=20), 50)
    report = judge(["score"], replayed(few), replayed(few + 0.05), OPTIONS)
    assert report.skipped == "fewer than 64 different scores"


def test_rounding_errors_do_not_make_rows_different() -> None:
    jitter = np.random.default_rng(3).uniform(-1e-8, 1e-8, ROWS)
    assert compare_scores("score", 0.5 + jitter, np.linspace(0, 1, ROWS), 64) is None


def test_probabilities_that_lie_close_together_are_judged_by_their_mean_alone() -> None:
    now = np.linspace(0.5, 0.501, ROWS)
    report = judge(["score"], replayed(now), replayed(now[::-1] + 0.02), OPTIONS)
    assert (report.shifts[0].psi, report.shifts[0].correlation) == (None, None)
    refused(now, now + 0.2, "live_guard_max_mean_shift")


def test_other_scores_shift_in_standard_deviations() -> None:
    now = np.random.default_rng(4).normal(100.0, 20.0, ROWS)
    report = judge(["score"], replayed(now), replayed(now + 2.0), OPTIONS)
    assert report.shifts[0].shift_unit == "std"
    assert report.shifts[0].mean_shift == pytest.approx(2.0 / now.std(), rel=1e-2)
    refused(now, now + 8.0, r"mean_shift 0\.\d+std", ModelOptions(live_guard_max_psi=1e9))


def test_scores_that_are_no_numbers_are_refused_unless_they_were_before() -> None:
    now = probabilities()
    then = now.copy()
    then[:3] = np.nan
    refused(now, then, "3 of 400 rows get scores that are no numbers")
    assert judge(["score"], replayed(then), replayed(then), OPTIONS).shifts[0].rows == ROWS - 3


def test_ids_that_lose_their_rows_are_refused() -> None:
    scores = probabilities()
    with pytest.raises(GuardError, match=r"35\.0% of the ids have no row, 20\.0% now.*live_guard_max_absent_increase"):
        judge(["score"], replayed(scores, 200), replayed(scores, 350), OPTIONS)
    assert judge(["score"], replayed(scores, 350), replayed(scores, 200), OPTIONS).skipped == ""


def test_with_few_rows_there_is_no_judgement() -> None:
    report = judge(["score"], replayed(probabilities(rows=63)), replayed(1 - probabilities(rows=63)), OPTIONS)
    assert report.skipped == "63 rows of recent requests, 64 are needed"
    assert "no judgement" in str(report)


def test_each_output_and_column_is_judged_by_its_name() -> None:
    first, second = probabilities(1), probabilities(2)
    now = Replayed([first[:, None], np.stack([first, second], 1)], 1, 0)
    then = Replayed([first[:, None], np.stack([first, 1 - second], 1)], 1, 0)
    with pytest.raises(GuardError, match=r"output 'both\[1\]'"):
        judge(["score", "both"], now, then, OPTIONS)


def test_an_output_of_another_shape_is_not_compared() -> None:
    scores = probabilities()
    then = Replayed([np.stack([scores, scores], 1)], 1, 0)
    assert judge(["score"], replayed(scores), then, OPTIONS).shifts == ()
