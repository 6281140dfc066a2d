"""Live AUC tells a canary that ranks worse from one that does not, and from one about which nothing is known."""

from __future__ import annotations

import numpy as np

from serving.feedback.live_auc import FAILS, PASSES, WAITS, judge
from serving.feedback.score_window import ScoreWindow
from tests.unit.serving.feedback.test_score_window import batch, label, window


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


def verdict(kept: ScoreWindow, min_labels: int = 500, max_drop: float = 0.01) -> tuple[str, str]:
    found = judge(kept, "click", "1.0", "1.1", min_labels, max_drop)
    return found.kind, found.reason


def test_it_waits_for_labels_of_both_arms() -> None:
    kept = window(max_bytes=1 << 26)
    assert verdict(kept)[0] == WAITS
    serve(kept, "1.1", "canary", 0.8, 600)
    kind, reason = verdict(kept)
    assert kind == WAITS
    assert "600 labelled rows of 1.1 and 0 of 1.0" in reason


def test_a_better_canary_passes_and_a_worse_one_fails_with_the_figures() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "1.1", "canary", 0.9, 3000, seed=1)
    serve(kept, "1.0", "main", 0.4, 3000)
    assert verdict(kept)[0] == PASSES
    worse = judge(kept, "click", "1.0", "1.1", 500, 0.01)
    assert worse.canary.auc is not None
    other = window(max_bytes=1 << 26)
    serve(other, "1.1", "canary", 0.4, 3000, seed=1)
    serve(other, "1.0", "main", 0.9, 3000)
    kind, reason = verdict(other)
    assert kind == FAILS
    assert "a difference of -0." in reason


def test_an_equal_canary_waits_until_there_are_enough_labels_to_tell() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "1.1", "canary", 0.8, 500, seed=1)
    serve(kept, "1.0", "main", 0.8, 500, seed=2)
    kind, reason = verdict(kept, max_drop=0.0005)
    assert kind == WAITS
    assert "more labels are needed" in reason
    assert verdict(kept, max_drop=0.2)[0] == PASSES


def test_rows_of_the_main_arm_from_before_the_canary_do_not_count() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "1.0", "main", 0.95, 2000, at=500.0)
    serve(kept, "1.1", "canary", 0.5, 600, at=1000.0, seed=1)
    assert verdict(kept)[0] == WAITS
    serve(kept, "1.0", "main", 0.5, 600, at=1000.0, seed=2)
    assert verdict(kept, max_drop=0.15)[0] == PASSES


def test_a_canary_of_another_version_has_requests_of_its_own() -> None:
    kept = window(max_bytes=1 << 26)
    serve(kept, "2.0", "main", 0.9, 800, seed=1)
    serve(kept, "1.0", "main", 0.5, 800)
    assert judge(kept, "click", "1.0", "2.0", 500, 0.01).kind == PASSES
