from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from serving.engine.shadow_comparison import MAX_COLUMNS, Comparison, OutputFigures, Sample, top_overlap
from serving.engine.shadow_verdict import verdict
from serving.model_config.options import ModelOptions

OPTIONS = ModelOptions(shadow_min_requests=3)
RNG = np.random.default_rng(1)


def compare(pairs: list[tuple[np.ndarray, np.ndarray]], *, slowdown: float = 1.0, top_k: int = 10) -> Comparison:
    comparison = Comparison(top_k)
    for main, shadow in pairs:
        outputs = [("score", main.astype(np.float32), shadow.astype(np.float32))]
        comparison.compared(outputs, main_ns=3_000_000, shadow_ns=round(2e6 * slowdown), again_ns=2_000_000)
    return comparison


def figures(pairs: list[tuple[np.ndarray, np.ndarray]], **options: int) -> OutputFigures:
    (found,) = compare(pairs, **options).figures().outputs
    return found


def scores(requests: int = 30, rows: int = 40) -> list[np.ndarray]:
    return [RNG.random(rows).astype(np.float32) for _ in range(requests)]


def test_the_figures_are_those_of_all_rows() -> None:
    pairs = [(main, np.clip(main + RNG.normal(0.02, 0.05, len(main)), 0, 1)) for main in scores()]
    found = figures(pairs)
    main, shadow = (np.concatenate([pair[side] for pair in pairs]).astype(np.float32) for side in (0, 1))
    shift = shadow.astype(float) - main
    assert found.rows == len(main)
    assert found.mean_shift == pytest.approx(shift.mean())
    assert found.mean_absolute_shift == pytest.approx(np.abs(shift).mean())
    assert found.p99_absolute_shift == pytest.approx(np.quantile(np.abs(shift), 0.99))
    assert found.spread == pytest.approx(main.astype(float).std(), rel=1e-6)
    assert found.calibration == pytest.approx(shadow.sum() / main.sum())
    assert found.is_unit
    overlaps = [len({*np.argsort(-main)[:10]} & {*np.argsort(-shadow)[:10]}) / 10 for main, shadow in pairs]
    assert found.overlap == pytest.approx(np.mean(overlaps))


def test_a_large_mean_costs_no_precision() -> None:
    found = figures([(1e9 + main * 1000, 1e9 + main * 1000) for main in scores(rows=5)])
    assert found.spread == pytest.approx(1000 / 12**0.5, rel=0.2)
    assert (found.mean_absolute_shift, found.overlap, found.overlap_requests) == (0.0, None, 0)


def test_equal_scores_have_no_order() -> None:
    main = np.array([5.0, 4.0, 4.0, 4.0, 1.0])
    for picked in combinations((1, 2, 3), 1):  # any of the three is as good as the others
        shadow = np.zeros(5)
        shadow[[0, *picked]] = 1.0
        assert top_overlap(main, shadow, 2) == 1.0
    # The shadow has no order at all: two of ten rows, taken by chance, are among the top two one time in five.
    assert top_overlap(np.arange(10.0), np.ones(10), 2) == pytest.approx(0.2)
    assert top_overlap(np.arange(10.0), np.arange(10.0)[::-1], 3) == 0.0
    rounded = np.arange(10.0) + RNG.normal(0, 1e-9, 10)
    assert top_overlap(np.arange(10.0), rounded, 4) == 1.0


def test_scores_that_are_no_numbers_are_left_out_and_fail() -> None:
    main = np.linspace(0, 1, 20)
    shadow = main.copy()
    shadow[3] = np.nan
    comparison = compare([(main, shadow)] * 3)
    (found,) = comparison.figures().outputs
    assert (found.not_finite, found.rows, found.mean_absolute_shift) == (3, 57, 0.0)
    assert str(verdict(comparison.figures(), OPTIONS)) == "fails: output 'score': 3 of 60 scores are no numbers"


def test_columns_of_wide_outputs_count_apart_and_the_first_of_them_only() -> None:
    wide = RNG.random((12, 2 * MAX_COLUMNS)).astype(np.float32)
    comparison = Comparison(3)
    texts = np.array([b"a"] * 12, object)
    comparison.compared([("wide", wide, wide + 1), ("texts", texts, texts)], main_ns=1, shadow_ns=1)
    found = comparison.figures()
    assert [each.output for each in found.outputs] == [f"wide[{column}]" for column in range(MAX_COLUMNS)]
    assert {round(each.mean_shift, 5) for each in found.outputs} == {1.0}
    assert found.timing.slowdown is None


def test_outputs_that_the_shadow_has_not_or_in_another_shape_are_never_equal() -> None:
    comparison, narrow, wide = Comparison(3), RNG.random((12, 1)), RNG.random((12, 2))
    for _ in range(3):
        comparison.compared([("score", narrow, wide), ("gone", narrow, None)], main_ns=1, shadow_ns=1)
    found = verdict(comparison.figures(), OPTIONS)
    assert found.kind == "shifted"
    assert found.reason == (
        "output 'score' has the shape [-1, 1], and [-1, 2] in the shadow; the shadow has no output 'gone'"
    )


def test_a_sample_is_uniform_over_all_that_came() -> None:
    means = []
    for seed in range(40):
        sample = Sample(np.random.default_rng(seed), capacity=100)
        for start in range(0, 1000, 70):
            sample.add(np.arange(start, min(1000, start + 70), dtype=float))
        assert sample.seen == 1000
        means.append(sample.quantile(0.5))
    assert np.mean(np.array(means, float)) == pytest.approx(500, abs=30)
    assert Sample(RNG).quantile(0.5) is None


@pytest.mark.parametrize(
    ("change", "slowdown", "kind", "text"),
    [
        (lambda s: s, 1.2, "equal", "within score 0, overlap 1.000; 1.20 times the time"),
        (lambda s: s, 1.6, "slower", "1.60 times as long as on the main arm, at most 1.5 .*shadow_max_slowdown"),
        (lambda s: s + 0.02, 1.6, "shifted", r"mean absolute shift 0\.02, at most 0\.01 is allowed \(shadow_max_shift"),
        (lambda s: s * 0.9, 1.0, "shifted", r"the sum of its scores is 0\.9 times .*\(shadow_max_miscalibration"),
        (lambda s: 1 - s, 1.0, "shifted", r"overlap of the top rows 0\.000, at least 0\.9 .*\(shadow_min_overlap"),
    ],
)
def test_each_verdict_names_its_bound(change: object, slowdown: float, kind: str, text: str) -> None:
    import re

    pairs = [(main, change(main)) for main in scores()]  # type: ignore[operator]
    found = verdict(compare(pairs, slowdown=slowdown).figures(), OPTIONS)
    assert found.kind == kind
    assert re.search(text, found.reason)


def test_scores_of_any_size_are_judged_in_standard_deviations_and_few_requests_not_at_all() -> None:
    pairs = [(main * 100 - 50, main * 100 - 50 + 0.1) for main in scores()]
    found = figures(pairs)
    assert found.calibration is None
    assert found.relative_shift == pytest.approx(0.1 / found.spread, rel=1e-3)
    assert verdict(compare(pairs).figures(), OPTIONS).kind == "equal"
    few = verdict(compare(pairs[:2]).figures(), OPTIONS)
    assert str(few) == "not enough requests: 2, at least 3 are needed (shadow_min_requests)"
    failed = compare(pairs)
    failed.failed("no such page")
    assert str(verdict(failed.figures(), OPTIONS)) == "fails: 1 of 31 requests, the last: no such page"
