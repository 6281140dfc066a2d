"""Live AUC tells a canary that ranks worse from one that does not, and from one about which nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from serving.feedback.labelled_rows import auc_of, quality_of
from serving.feedback.live_auc import Verdict, arms, judge
from serving.feedback.score_window import ScoreWindow
from storage.objects.trials import Arm, Evidence
from tests.unit.serving.feedback.test_score_window import batch, label, window

CANARY, MAIN = "c" * 32, "a" * 32


def serve(
    kept: ScoreWindow, snapshot: str, arm: str, skill: float, rows: int, at: float = 1000.0, seed: int = 0
) -> None:
    rng = np.random.default_rng(seed)
    for number in range(rows):
        name = f"{snapshot}-{arm}-{at}-{number}"
        truth = rng.random()
        score = skill * truth + (1 - skill) * rng.random()
        kept.add(batch(name, [score], at=at + number / 1000, snapshot=snapshot, arm=arm), at)
        kept.label(label(name, value=float(rng.random() < truth)), at)


def evidence_of(kept: ScoreWindow, canary: str = "1.1") -> Evidence:
    of_main, of_canary = arms(kept, "click", "1.0", canary)
    return Evidence(canary=CANARY, main=MAIN, output="click", of_canary=of_canary, of_main=of_main)


def verdict(*kept: ScoreWindow, min_labels: int = 500, max_drop: float = 0.01) -> Verdict:
    return judge([evidence_of(each) for each in kept], "click", "1.0", "1.1", min_labels, max_drop)


def test_it_waits_for_labels_of_both_arms() -> None:
    kept = window(max_bytes=1 << 26)
    assert verdict(kept).kind == "waits"
    serve(kept, "1.1", "canary", 0.8, 600)
    found = verdict(kept)
    assert found.kind == "waits"
    assert "600 labelled rows of 1.1 and 0 of 1.0" in found.reason


def test_a_better_canary_passes_and_a_worse_one_fails_with_the_figures() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "1.1", "canary", 0.9, 3000, seed=1)
    serve(kept, "1.0", "main", 0.4, 3000)
    assert verdict(kept).kind == "passes"
    other = window(max_bytes=1 << 26)
    serve(other, "1.1", "canary", 0.4, 3000, seed=1)
    serve(other, "1.0", "main", 0.9, 3000)
    found = verdict(other)
    assert found.kind == "fails"
    assert "a difference of -0." in found.reason


def test_an_equal_canary_waits_until_there_are_enough_labels_to_tell() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "1.1", "canary", 0.8, 500, seed=1)
    serve(kept, "1.0", "main", 0.8, 500, seed=2)
    found = verdict(kept, max_drop=0.0005)
    assert found.kind == "waits"
    assert "more labels are needed" in found.reason
    assert verdict(kept, max_drop=0.2).kind == "passes"


def test_rows_of_the_main_arm_from_before_the_canary_do_not_count() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "1.0", "main", 0.95, 2000, at=500.0)
    serve(kept, "1.1", "canary", 0.5, 600, at=1000.0, seed=1)
    assert verdict(kept).kind == "waits"
    serve(kept, "1.0", "main", 0.5, 600, at=1000.0, seed=2)
    assert verdict(kept, max_drop=0.15).kind == "passes"


def test_a_canary_of_another_version_has_requests_of_its_own() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "2.0", "main", 0.9, 800, seed=1)
    serve(kept, "1.0", "main", 0.5, 800)
    assert judge([evidence_of(kept, "2.0")], "click", "1.0", "2.0", 500, 0.01).kind == "passes"


def test_rows_of_several_servers_are_added_up() -> None:
    servers = [window(max_bytes=1 << 26) for _ in range(3)]
    for seed, kept in enumerate(servers):
        serve(kept, "1.1", "canary", 0.9, 400, seed=seed)
        serve(kept, "1.0", "main", 0.4, 400, seed=10 + seed)
    found = verdict(*servers[:2], min_labels=1200)
    assert (found.kind, "800 labelled rows" in found.reason) == ("waits", True)
    found = verdict(*servers, min_labels=1200)
    assert (found.kind, "over 1200 and 1200 labelled rows" in found.reason) == ("passes", True)


def test_a_server_with_labels_of_one_kind_counts_for_nothing() -> None:
    good, bare = Arm(rows=600, positives=300, auc=0.8, auc_error=0.01), Arm(rows=600, positives=600)
    both = Evidence(canary=CANARY, main=MAIN, output="click", of_canary=good, of_main=good)
    half = both.model_copy(update={"of_main": bare})
    alone, beside = (judge(each, "click", "1.0", "1.1", 500, 0.05) for each in ([both], [both, half]))
    assert alone == beside
    assert alone.kind == "passes"
    found = judge([half], "click", "1.0", "1.1", 500, 0.05)
    assert (found.kind, "labels of both kinds" in found.reason) == ("waits", True)


def test_a_server_with_two_clicks_says_less_than_one_with_hundreds_among_as_many_rows() -> None:
    rich, poor = Arm(rows=1000, positives=300, auc=0.8, auc_error=0.01), Arm(rows=1000, positives=2)
    best = poor.model_copy(update={"auc": 1.0, "auc_error": 0.0})
    worst = poor.model_copy(update={"auc": 0.5, "auc_error": 0.0})
    pooled = [
        Evidence(canary=CANARY, main=MAIN, output="click", of_canary=rich, of_main=rich),
        Evidence(canary=CANARY, main=MAIN, output="click", of_canary=worst, of_main=best),
    ]
    assert judge(pooled, "click", "1.0", "1.1", 500, 0.03).kind == "passes"


def drawn(rng: np.random.Generator, rows: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores and labels of rows, of which 30% are positive; positive ones have scores higher by `shift`."""
    labels = rng.random(rows) < 0.3
    return rng.normal(size=rows) + shift * labels, labels


def simulated(rng: np.random.Generator, sizes: Sequence[int], canary: float, main: float) -> list[Evidence]:
    """Returns what servers with so many rows of either arm know."""
    found = []
    for rows in sizes:
        known = []
        for shift in (canary, main):
            scores, labels = drawn(rng, rows, shift)
            auc, error = auc_of(scores, labels, np.arange(rows))
            known.append(Arm(rows=rows, positives=int(labels.sum()), auc=auc, auc_error=error))
        found.append(Evidence(canary=CANARY, main=MAIN, output="click", of_canary=known[0], of_main=known[1]))
    return found


def verdicts(sizes: Sequence[int], canary: float, main: float, max_drop: float, times: int) -> dict[str, float]:
    """Returns the shares of the verdicts of simulated trials."""
    rng = np.random.default_rng(7)
    trials = [simulated(rng, sizes, canary, main) for _ in range(times)]
    found = [judge(each, "click", "1.0", "1.1", 10, max_drop).kind for each in trials]
    return {kind: found.count(kind) / times for kind in ("passes", "fails", "waits")}


# Of one server that knows all labels, of servers of unequal sizes, and of many small ones.
SIZES = ([1200], [600, 400, 160, 40], [30] * 40)


@pytest.mark.parametrize("sizes", [*SIZES[:2], pytest.param(SIZES[2], marks=pytest.mark.slow)])
def test_each_wrong_verdict_comes_in_one_of_twenty_trials_however_rows_are_spread(sizes: list[int]) -> None:
    # The true difference is the bound itself, so either verdict is wrong by a hair.
    found = verdicts(sizes, 1.0, 1.0, 0.0, 300)
    assert 0.02 < found["passes"] < 0.08
    assert 0.02 < found["fails"] < 0.08


@pytest.mark.parametrize(
    ("sizes", "slack"), [(SIZES[0], 0.0), (SIZES[1], 0.1), pytest.param(SIZES[2], 0.1, marks=pytest.mark.slow)]
)
def test_a_drop_is_held_and_an_equal_canary_passes_as_often_as_with_pooled_rows(sizes: list[int], slack: float) -> None:
    assert verdicts(sizes, 0.7, 1.0, 0.005, 100)["fails"] > 0.85 - slack
    assert verdicts(sizes, 1.0, 1.0, 0.06, 100)["passes"] > 0.85 - slack


@pytest.mark.parametrize("labels_of", [lambda clicks: 2.0 * clicks - 1, lambda clicks: 5.0 * clicks])
def test_labels_of_any_range_weigh_a_server_by_its_rows_of_either_kind(
    labels_of: Callable[[np.ndarray], np.ndarray],
) -> None:
    scores, clicks = drawn(np.random.default_rng(0), 500, 1.0)
    usual, other = (quality_of(scores, each, np.arange(500)) for each in (clicks, labels_of(clicks)))
    assert usual.above == other.above == clicks.sum()
    assert (usual.auc, usual.auc_error) == (other.auc, other.auc_error)
