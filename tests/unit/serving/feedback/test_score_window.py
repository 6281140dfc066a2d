"""Labels find the scores of their requests: early, late, twice, of no request, and within the bound on memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from serving.engine.tap import sample_point
from serving.feedback import labelled_rows, score_window
from serving.feedback.score_window import Label, ScoreWindow, WindowSettings
from serving.feedback.served_batch import ServedBatch, ServedRequest
from serving.protocol.signature import ModelSignature, OutputSignature
from storage.features import FeatureSpec

SPEC = FeatureSpec.model_validate(
    {
        "inputs": [{"name": "x", "dtype": "FP32"}],
        "features": [{"name": "x", "inputs": ["x"], "output": "dense"}],
    }
)
SIGNATURE = ModelSignature(
    "m", SPEC.inputs, [OutputSignature("click", "FP32", (1,)), OutputSignature("vector", "FP32", (3,))], 64
)


def batch(name: str, scores: list[float], at: float = 1000.0, snapshot: str = "1.0", arm: str = "main") -> ServedBatch:
    rows = len(scores)
    outputs = [np.array(scores, np.float32).reshape(rows, 1), np.zeros((rows, 3), np.float32)]
    request = ServedRequest(name, sample_point(name), 0, rows, int(at * 1e6))
    return ServedBatch({}, outputs, rows, [request], SIGNATURE, snapshot, arm, 100)


def window(**options: Any) -> ScoreWindow:
    return ScoreWindow(WindowSettings(**{"share": 1.0, "keep_s": 600.0, "max_bytes": 1 << 20, **options}))


def label(name: str, row: int = 0, value: float = 1.0, output: str = "click") -> Label:
    return Label(name, row, output, value, 1000.0)


def test_a_label_joins_the_score_of_its_row_once() -> None:
    kept = window()
    kept.add(batch("a", [0.1, 0.9]), 1000.0)
    assert kept.label(label("a", 1), 1001.0) == "joined"
    assert kept.label(label("a", 1, 0.0), 1001.0) == "twice"
    assert kept.label(label("a", 0, 0.0), 1001.0) == "joined"
    (key, quality) = kept.qualities()[0]
    assert key == ("1.0", "main", "click")
    assert (quality.rows, quality.positives, quality.auc) == (2, 1.0, 1.0)


@pytest.mark.parametrize(("row", "output"), [(2, "click"), (2**31 - 1, "click"), (0, "vector"), (0, "other")])
def test_a_label_of_a_row_or_output_that_is_not_there_is_a_misfit(row: int, output: str) -> None:
    kept = window()
    kept.add(batch("a", [0.1, 0.9]), 1000.0)
    assert kept.label(label("a", row, output=output), 1001.0) == "misfit"
    assert kept.qualities() == []


def test_a_label_may_come_before_its_request() -> None:
    kept = window()
    assert kept.label(label("a", 1), 1000.0) == "early"
    assert kept.label(label("a", 1), 1000.0) == "twice"
    assert kept.label(label("a", 7), 1000.0) == "early"
    assert kept.early == 2
    kept.add(batch("a", [0.1, 0.9]), 1001.0)
    assert kept.early == 0
    assert kept.outcomes == {"joined": 1, "unknown": 0, "unsampled": 0, "twice": 1, "late": 0, "misfit": 1}


def test_a_label_of_no_request_is_unknown_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_window, "MAX_EARLY", 3)
    kept = window()
    assert [kept.label(label(str(number)), 1000.0) for number in range(5)] == ["early"] * 3 + ["unknown"] * 2
    kept.tick(1000.0 + score_window.EARLY_S)
    assert kept.early == 0
    assert kept.outcomes["unknown"] == 5


def test_requests_that_are_not_in_the_sample_are_told_from_unknown_ones() -> None:
    kept = window(share=0.5)
    names = [f"request {number}" for number in range(40)]
    for name in names:
        kept.add(batch(name, [0.5]), 1000.0)
    outcomes = {name: kept.label(label(name), 1000.0) for name in names}
    assert outcomes == {name: "joined" if sample_point(name) < 0.5 else "unsampled" for name in names}
    assert 0 < len(kept) < 40


def test_rows_without_a_label_count_as_negative_when_their_time_is_over() -> None:
    kept = window(negative_after_s=60.0)
    kept.add(batch("a", [0.1, 0.9]), 1000.0)
    kept.add(batch("b", [0.2], at=1050.0), 1050.0)
    kept.label(label("a", 1), 1010.0)
    kept.tick(1059.0)
    assert kept.negatives == 0
    kept.tick(1061.0)
    assert kept.negatives == 1
    assert kept.label(label("a", 0), 1062.0) == "late"
    kept.tick(1111.0)
    (_, quality) = kept.qualities()[0]
    assert (quality.rows, quality.positives) == (3, 1.0)


def test_without_that_rows_without_a_label_count_as_nothing_and_leave_in_time() -> None:
    kept = window(keep_s=60.0)
    kept.add(batch("a", [0.1, 0.9]), 1000.0)
    kept.label(label("a", 1), 1010.0)
    kept.tick(1061.0)
    assert (len(kept), kept.bytes, kept.negatives) == (0, 0, 0)
    assert kept.label(label("a", 0), 1061.0) == "early"
    assert kept.qualities()[0][1].rows == 1


@pytest.mark.parametrize("negative_after_s", [None, 300.0])
def test_memory_is_bounded_and_the_oldest_leave(negative_after_s: float | None) -> None:
    kept = window(max_bytes=20_000, negative_after_s=negative_after_s)
    for number in range(500):
        kept.add(batch(f"r{number}", [0.5] * 8, at=1000.0 + number / 1000), 1000.0)
    assert kept.bytes <= 20_000
    assert kept.pushed_out == 500 - len(kept)
    assert kept.label(label("r499"), 1001.0) == "joined"
    assert kept.label(label("r0"), 1001.0) == "early"
    assert len(kept._open) <= len(kept)


def test_the_bound_on_memory_has_room_for_a_label_of_every_row() -> None:
    kept = window()
    kept.add(batch("a", [0.5] * 2000), 1000.0)
    for row in range(2000):
        assert kept.label(label("a", row), 1001.0) == "joined"
    (entry,) = kept._scored.values()
    arrays = [*entry.scores.values(), *entry.labelled.values()]
    assert sum(map(sys.getsizeof, arrays)) <= kept.bytes


def test_an_id_that_comes_again_keeps_its_first_scores() -> None:
    kept = window()
    kept.add(batch("a", [0.9]), 1000.0)
    kept.add(batch("a", [0.1, 0.2]), 1001.0)
    assert (kept.repeated, len(kept)) == (1, 1)
    kept.label(label("a"), 1002.0)
    assert kept.qualities()[0][1].mean_score == pytest.approx(0.9)


def test_arms_and_snapshots_count_apart_and_the_oldest_snapshots_leave() -> None:
    kept = window()
    for number in range(score_window.MAX_SNAPSHOTS + 3):
        for arm in ("main", "canary"):
            kept.add(batch(f"{number}{arm}", [0.5], snapshot=f"1.{number}", arm=arm), 1000.0)
            kept.label(label(f"{number}{arm}"), 1000.0)
    snapshots = [key[0] for key, _ in kept.qualities()]
    assert snapshots[-1] == f"1.{score_window.MAX_SNAPSHOTS + 2}"
    assert snapshots == [f"1.{number}" for number in range(3, score_window.MAX_SNAPSHOTS + 3) for _ in range(2)]


def test_late_labels_of_old_snapshots_push_no_newer_ones_out() -> None:
    kept = window(keep_s=100_000.0)
    last = score_window.MAX_SNAPSHOTS + 5
    for number in range(last + 1):
        kept.add(batch(f"r{number}", [0.5, 0.6], at=1000.0 + number, snapshot=f"1.{number}"), 1000.0)
    newest_first = range(last, -1, -1)
    for row in (0, 1):
        assert [kept.label(label(f"r{number}", row), 2000.0) for number in newest_first] == ["joined"] * (last + 1)
    wanted = [f"1.{number}" for number in range(last + 1)][-score_window.MAX_SNAPSHOTS :]
    assert [(key[0], quality.rows) for key, quality in kept.qualities()] == [(name, 2) for name in wanted]


def test_figures_are_computed_while_labels_go_on_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = window()
    kept.add(batch("a", [0.1, 0.9]), 1000.0)
    kept.label(label("a", 1), 1001.0)

    def quality_of(*rows: Any) -> Any:
        assert kept.label(label("a", 0, 0.0), 1002.0) == "joined"  # it waits for no lock
        return labelled_rows.quality_of(*rows)

    monkeypatch.setattr(score_window, "quality_of", quality_of)
    assert kept.qualities()[0][1].rows == 1
