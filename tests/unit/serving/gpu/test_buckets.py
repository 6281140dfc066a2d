"""Batch buckets: powers of two by default, what optimization.cuda says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.model_config.buckets import GraphSettings
from serving.model_config.pbtxt import read_model_config
from storage.errors import ConfigError


def settings(tmp_path: Path, text: str) -> GraphSettings:
    folder = tmp_path / "ranker"
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    return read_model_config(folder).graphs


@pytest.mark.parametrize("max_batch", [1, 2, 3, 7, 8, 9, 1000, 1024])
def test_every_batch_has_a_bucket_less_than_twice_its_size(max_batch: int) -> None:
    buckets = GraphSettings().buckets(max_batch)
    assert buckets.all[-1].size == max_batch
    for rows in range(1, max_batch + 1):
        size = buckets.of(rows)
        assert size is not None
        assert rows <= size < 2 * rows or size == max_batch
    assert buckets.of(max_batch + 1) is None


def test_without_a_word_graphs_are_on_and_with_one_they_are_what_it_says(tmp_path: Path) -> None:
    assert settings(tmp_path, "").graphs
    assert settings(tmp_path, "").busy_wait is None
    assert settings(tmp_path, "optimization { }").graphs
    off = settings(tmp_path, "optimization { cuda { busy_wait_events: true } }")
    assert not off.graphs
    assert off.busy_wait is True
    assert settings(tmp_path, "optimization { cuda { graphs: true } }").busy_wait is None
    assert off.buckets(64).of(1) is None


def test_specs_are_triton_s(tmp_path: Path) -> None:
    text = """max_batch_size: 64 optimization { cuda { graphs: true
      graph_spec { batch_size: 64 graph_lower_bound { batch_size: 17 } } graph_spec { batch_size: 8 } } }"""
    buckets = settings(tmp_path, text).buckets(64)
    assert [buckets.of(rows) for rows in (1, 7, 8, 9, 16, 17, 64, 65)] == [None, None, 8, None, None, 64, 64, None]
    exact = buckets.exact()
    assert [exact.of(rows) for rows in (8, 17, 63, 64)] == [8, None, None, 64]


def test_a_wider_bound_takes_what_a_smaller_size_does_not(tmp_path: Path) -> None:
    text = """max_batch_size: 64 optimization { cuda { graphs: true graph_spec { batch_size: 16 }
      graph_spec { batch_size: 32 graph_lower_bound { batch_size: 4 } } } }"""
    buckets = settings(tmp_path, text).buckets(64)
    assert [buckets.of(rows) for rows in (3, 4, 16, 17)] == [None, 32, 16, 32]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
        ("optimization { cuda { output_copy_stream: true } }", "optimization.cuda.output_copy_stream"),
        ("optimization { cuda { graph_spec { batch_size: 4 } } }", "optimization.cuda.graph_spec"),
        (
            "optimization { cuda { graphs: true graph_spec { } } }",
            "optimization.cuda.graph_spec[0].batch_size",
        ),
        (
            "max_batch_size: 4 optimization { cuda { graphs: true graph_spec { batch_size: 8 } } }",
            "optimization.cuda.graph_spec[0].batch_size",
        ),
        (
            "optimization { cuda { graphs: true graph_spec { batch_size: 4 graph_lower_bound { batch_size: 5 } } } }",
            "optimization.cuda.graph_spec[0].graph_lower_bound.batch_size",
        ),
        (
            "optimization { cuda { graphs: true graph_spec { batch_size: 4 } graph_spec { batch_size: 4 } } }",
            "optimization.cuda.graph_spec[1].batch_size",
        ),
        (
            'optimization { cuda { graphs: true graph_spec { batch_size: 4 input { key: "a" value { dim: 1 } } } } }',
            "optimization.cuda.graph_spec[0].input",
        ),
    ],
)
def test_wrong_settings_are_refused_by_field(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(tmp_path, text)
    assert raised.value.field == field


def test_a_size_over_the_models_own_is_an_error(tmp_path: Path) -> None:
    graphs = settings(tmp_path, "optimization { cuda { graphs: true graph_spec { batch_size: 512 } } }")
    with pytest.raises(ConfigError, match="batch_size 512 is over the model's 64") as raised:
        graphs.buckets(64)
    assert raised.value.field == "optimization.cuda.graph_spec"
