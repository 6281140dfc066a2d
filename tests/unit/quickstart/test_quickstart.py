"""The quickstart's own judgement: baselines that mean what they say, and a report that cannot pass by mistake."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.quickstart.baselines import SMOOTHING, Baseline, logistic_regression, mean_rate
from examples.quickstart.judge import Comparison, compare
from examples.quickstart.newer import NewerFindings
from examples.quickstart.report import Findings, tiers, write_report
from examples.quickstart.stream import StreamFindings
from storage.features import FeatureSpec
from trainer.metrics import auc

SPEC = FeatureSpec.parse(
    {
        "inputs": [
            {"name": "item", "dtype": "INT64"},
            {"name": "history", "dtype": "INT64", "kind": "list"},
            {"name": "x", "dtype": "FP32"},
        ],
        "features": [
            {"name": "item", "inputs": ["item"], "output": "ids", "table": "item"},
            {"name": "history", "inputs": ["history"], "output": "ids", "table": "history", "pooling": "mean"},
            {"name": "x", "inputs": ["x"], "output": "dense"},
        ],
    }
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Makes labels that depend on the item, on the history and on x."""
    folder, rng, found = tmp_path_factory.mktemp("parts"), np.random.default_rng(1), {}
    for part, rows in (("train", 6000), ("valid", 2000), ("test", 2000)):
        item, x = rng.integers(0, 20, rows), rng.standard_normal(rows)
        history = [rng.integers(0, 10, rng.integers(0, 5)).tolist() for _ in range(rows)]
        logit = (item % 3 - 1.0) + x + np.array([sum(entry < 5 for entry in h) - len(h) / 2 for h in history])
        label = rng.random(rows) < 1 / (1 + np.exp(-logit))
        table = {"item": item, "history": history, "x": x.astype(np.float32), "label": label.astype(np.int8)}
        found[part] = folder / f"{part}.parquet"
        pq.write_table(pa.table(table), found[part])
    return found


def test_the_mean_rate_is_smoothed_and_unseen_items_get_the_overall_rate(tmp_path: Path) -> None:
    parts = {}
    for part, items, labels in (
        ("train", [1, 1, 2, 2], [1, 1, 0, 1]),
        ("valid", [1, 2], [1, 0]),
        ("test", [1, 3], [1, 0]),
    ):
        parts[part] = tmp_path / f"{part}.parquet"
        pq.write_table(pa.table({"item": items, "label": labels}), parts[part])
    found = mean_rate(parts, "item", "label")
    assert found.scores.tolist() == [(2 + SMOOTHING * 0.75) / (2 + SMOOTHING), 0.75]
    assert found.valid_auc == 1.0


def test_the_regression_uses_every_feature_and_takes_the_lists_where_they_help(parts: dict[str, Path]) -> None:
    found = logistic_regression(parts, SPEC, "label", frozenset({"history"}))
    assert "with earlier items" in found.name
    truth = pq.read_table(parts["test"])["label"].to_numpy()
    assert auc(truth, found.scores) > auc(truth, mean_rate(parts, "item", "label").scores) + 0.1
    assert auc(truth, found.scores) == pytest.approx(found.valid_auc, abs=0.03)


def test_a_better_model_wins_and_the_same_scores_do_not() -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 2, 2000).astype(np.float32)
    noise = rng.standard_normal(2000)
    worse, better = truth * 0.5 + noise, truth * 1.5 + noise
    everything = {"all": np.ones(2000, np.bool_), "half": np.arange(2000) < 1000}
    found = compare(truth, better, [Baseline("worse", worse, 0.0), Baseline("same", better, 0.0)], everything)
    assert [(entry.rows_of, entry.rows, entry.won) for entry in found] == [
        ("all", 2000, True),
        ("all", 2000, False),
        ("half", 1000, True),
        ("half", 1000, False),
    ]


NEWER = NewerFindings(
    auc_before=0.74,
    auc_after=0.75,
    delta_bytes=1000,
    delta_rows=10,
    train_rows=100,
    visible_ms=40.0,
    rollback_ms=3.0,
    parity={("m", "gRPC"): 1e-8},
    back=0.0,
    load={"requests": 100, "failures": 0, "p99_ms": 5.0},
    covered=True,
)


def findings(**changes: Any) -> Findings:
    won = Comparison("all", 10, "some", 0.8, 0.7, 0.1, 0.05, 0.15)
    load = {kind: {"p50_ms": 1.0, "p99_ms": 2.0, "failures": 0, "requests": 5} for kind in ("http_binary", "grpc")}
    values: dict[str, Any] = {
        "comparisons": [won, won],
        "parity": {("m", "gRPC"): 1e-7},
        "load": load,
        "tiers": {"m": {"hits": {"dram": 3.0}, "rows": {"dram": 1.0}, "bytes": {"dram": 9.0}}},
        "version": SimpleNamespace(manifest=SimpleNamespace(files=[SimpleNamespace(size=7)])),
        "trained": SimpleNamespace(to_json_value=lambda: {"steps": 1}),
        "seconds": {"train": 1.5},
        "newer": NEWER,
        "followed": StreamFindings([3.0, 1.0, 2.0]),
    }
    return Findings(**{**values, **changes})


def test_the_report_has_the_promised_keys(tmp_path: Path) -> None:
    assert write_report(tmp_path / "report.json", findings(), tolerance=1e-6)
    content = json.loads((tmp_path / "report.json").read_text())
    assert {"auc", "auc_logistic", "auc_mean_rate", "parity", "http_p99_ms", "grpc_p99_ms", "hits", "bytes"} <= set(
        content
    )
    assert {"auc_before_delta", "auc_after_delta", "delta_bytes", "visible_ms", "parity_after_delta"} <= set(content)
    assert content["failed_during_delta"] == 0
    assert content["parity"] == 1e-7
    assert content["click_to_served_s"] == 2.0
    assert content["hits"] == {"m": {"dram": 3.0}}


@pytest.mark.parametrize(
    "changes",
    [
        {"parity": {("m", "gRPC"): 1e-7, ("m", "HTTP JSON"): 2e-6}},
        {"comparisons": [Comparison("all", 10, "some", 0.8, 0.79, 0.01, -0.01, 0.03)] * 2},
        {
            "load": {
                kind: {"p50_ms": 1.0, "p99_ms": 2.0, "failures": 1, "requests": 5} for kind in ("http_binary", "grpc")
            }
        },
        {"newer": replace(NEWER, load={"requests": 100, "failures": 1, "p99_ms": 5.0})},
        {"newer": replace(NEWER, parity={("m", "gRPC"): 1e-3})},
        {"newer": replace(NEWER, back=1e-4)},
        {"newer": replace(NEWER, covered=False)},
    ],
    ids=[
        "a transport differs",
        "a baseline is not beaten",
        "a request failed",
        "a request failed during the delta",
        "a transport differs after the delta",
        "the rollback gives other answers",
        "the load ended too early",
    ],
)
def test_the_report_says_when_something_was_not_shown(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert not write_report(tmp_path / "report.json", findings(**changes), tolerance=1e-6)


def test_tiers_are_read_from_the_metrics_page() -> None:
    found = tiers(
        {
            'emberline_ids_hit_total{model="a",tier="dram",version="1"}': 5.0,
            'emberline_tier_bytes{model="a",tier="ssd",version="1"}': 6.0,
            'emberline_ids_absent_total{model="a",version="1"}': 7.0,
            'emberline_queue_length{model="a",version="1"}': 8.0,
        }
    )
    assert found == {"a": {"hits": {"dram": 5.0, "absent": 7.0}, "rows": {}, "bytes": {"ssd": 6.0}}}
