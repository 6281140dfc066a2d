"""A model with other features, tables or dims starts from a run: what is the same stays to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import ConfigError
from tests.integration.trainer.warm_starts import (
    changed,
    fates,
    of_dim,
    optimizers,
    renamed,
    reordered,
    started,
    weights_of,
    with_colors,
    with_sparse,
    without,
)
from trainer import StartFrom, load_trained, plan_start
from trainer.checkpoint import checkpoints, load_checkpoint
from trainer.config import TrainConfig
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]
RunOf = Callable[[str], Path]
MODELS = ("deepfm", "dlrm", "din")


@pytest.mark.parametrize("model", MODELS)
def test_the_same_configuration_starts_with_the_same_model_to_the_bit(
    run_of: RunOf, config_of: Make, fresh_clicks: Path, model: str
) -> None:
    config, before = config_of(model), load_trained(run_of(model))
    now = started(config, run_of(model))
    assert now.predict(fresh_clicks).tobytes() == before.predict(fresh_clicks).tobytes()
    assert set(fates(now.report).values()) == {"taken"}
    assert optimizers(now.report) == {True}
    assert now.report.notes == []
    for name, table in now.tables.items():
        other = before.tables[name]
        exported: list[list[bytes]] = [[part.tobytes() for part in each.export_rows()[:4]] for each in (table, other)]
        assert exported[0] == exported[1]
        assert [each.tobytes() for each in table.export_counts()] == [each.tobytes() for each in other.export_counts()]
        assert table.steps == other.steps > 0
    tables = build_tables(config)
    fresh = build_model(config, tables)
    optimizer = dense_optimizer(config.optimizer.dense, fresh)
    with torch.random.fork_rng(devices=[]):
        load_checkpoint(checkpoints(run_of(model))[-1], fresh, tables, optimizer)
    assert str(now.dense.state_dict()) == str(optimizer.state_dict())


@pytest.mark.parametrize("model", MODELS)
def test_a_new_feature_leaves_the_columns_of_the_others(
    run_of: RunOf, config_of: Make, fresh_clicks: Path, model: str
) -> None:
    now = started(changed(config_of(model), with_colors), run_of(model))
    # The rows of the new feature are zeros and its dense value is 0, so that it adds nothing.
    expected = load_trained(run_of(model)).predict(fresh_clicks)
    np.testing.assert_allclose(now.predict(fresh_clicks), expected, atol=2e-6)
    first = {"deepfm": "deep.0.weight", "dlrm": "top.0.weight", "din": "top.0.weight"}[model]
    assert fates(now.report) | {"colors": "new", first: "widened"} == fates(now.report)
    assert "feature color: new" in now.report.notes
    values = weights_of(now)[first]
    own = next(entry for entry in now.report.weights if entry.name == first).values
    assert 0 < own < values.size
    assert np.abs(values).min() > 0, "new columns are initialised as in a new model, not zeros"


@pytest.mark.parametrize("model", MODELS)
def test_features_in_another_order_are_found_by_name(
    run_of: RunOf, config_of: Make, fresh_clicks: Path, model: str
) -> None:
    now = started(changed(config_of(model), reordered), run_of(model))
    expected = load_trained(run_of(model)).predict(fresh_clicks)
    np.testing.assert_allclose(now.predict(fresh_clicks), expected, atol=2e-6)
    assert set(fates(now.report).values()) == {"taken"}
    index = [name for name, _ in now.model.named_parameters()].index(
        {"deepfm": "deep.0.weight", "dlrm": "top.0.weight", "din": "top.0.weight"}[model]
    )
    moments = now.dense.state_dict()["state"][index]["exp_avg"]
    assert moments.shape == list(now.model.parameters())[index].shape
    assert moments.abs().sum() > 0


# The columns of `tags` in the first layer: fields of 7 values, pairs of vectors, fields of 8 values.
REMOVED = {
    "deepfm": ("deep.0.weight", [*range(14), *range(21, 29)]),
    "dlrm": ("top.0.weight", [*range(8), *(8 + pair for pair in (0, 1, 2, 6, 7, 8))]),
    "din": ("top.0.weight", [*range(16), *range(24, 41)]),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_feature_that_is_gone_takes_its_columns_along(run_of: RunOf, config_of: Make, model: str) -> None:
    now = started(changed(config_of(model), without("tags", "tags")), run_of(model))
    weight, columns = REMOVED[model]
    before = weights_of(load_trained(run_of(model)))[weight]
    assert weights_of(now)[weight].tobytes() == np.ascontiguousarray(before[:, columns]).tobytes()
    assert fates(now.report)[weight] == "cut"
    (gone,) = (entry for entry in now.report.tables if entry.change == "gone")
    assert (gone.name, gone.rows) == ("tags", load_trained(run_of(model)).tables["tags"].size())
    assert now.report.notes == ["feature tags: gone"]


@pytest.mark.parametrize("model", MODELS)
def test_what_was_renamed_is_found_by_the_map(run_of: RunOf, config_of: Make, fresh_clicks: Path, model: str) -> None:
    config = changed(config_of(model), renamed)
    names = {"labels": "tags", "goods": "items"}
    now = started(config, run_of(model), renamed=names)
    np.testing.assert_allclose(now.predict(fresh_clicks), load_trained(run_of(model)).predict(fresh_clicks), atol=1e-6)
    assert set(fates(now.report).values()) == {"taken"}
    assert {entry.name: entry.source for entry in now.report.tables}["goods"] == "items"
    lost = fates(started(config, run_of(model)).report)
    assert lost | {"labels": "new", "goods": "new", "tags": "gone", "items": "gone"} == lost
    # Of the table alone: the feature is another one then.
    part = started(config, run_of(model), renamed={"tables.labels": "tags", "goods": "items"})
    assert fates(part.report)["labels"] == "taken"
    assert "feature labels: new" in part.report.notes
    with pytest.raises(
        ConfigError, match=r"map labels=tagz: the source has no .* 'tagz'; did you mean 'tags'"
    ) as caught:
        started(config, run_of(model), renamed={"labels": "tagz"})
    assert caught.value.field == "map"
    with pytest.raises(ConfigError, match=r"map lables=tags: the model has no .* did you mean 'labels'"):
        started(config, run_of(model), renamed={"lables": "tags"})


@pytest.mark.parametrize("model", ["deepfm", "din"])
def test_a_wider_table_keeps_the_leading_values(run_of: RunOf, config_of: Make, fresh_clicks: Path, model: str) -> None:
    before = load_trained(run_of(model))
    now = started(changed(config_of(model), of_dim(12)), run_of(model))
    # Values that begin as zeros change nothing in these models.
    np.testing.assert_allclose(now.predict(fresh_clicks), before.predict(fresh_clicks), atol=2e-6)
    assert {entry.change for entry in now.report.tables} == {"widened"}
    drawn = started(changed(config_of(model), of_dim(12, "uniform")), run_of(model))
    for name, table in drawn.tables.items():
        ids, rows, slots, counts, *_ = table.export_rows()
        old_ids, old_rows, old_slots, old_counts, *_ = before.tables[name].export_rows()
        assert ids.tobytes() == old_ids.tobytes()
        assert rows[:, :8].tobytes() == old_rows.tobytes()
        assert rows[:, 8:].tobytes() == table.first_rows(ids)[:, 8:].tobytes()
        assert np.abs(rows[:, 8:]).max() > 0.2
        assert slots[:, :8].tobytes() == old_slots.tobytes()
        assert (slots[:, 8:] == np.float32(0.0001)).all()
        assert counts.tobytes() == old_counts.tobytes()


@pytest.mark.parametrize("model", MODELS)
def test_a_narrower_table_cuts_the_rows(run_of: RunOf, config_of: Make, model: str) -> None:
    now = started(changed(config_of(model), of_dim(5)), run_of(model))
    before = load_trained(run_of(model))
    assert {entry.change for entry in now.report.tables} == {"cut"}
    for name, table in now.tables.items():
        assert table.export_rows()[1].tobytes() == before.tables[name].export_rows()[1][:, :5].tobytes()
    if model == "deepfm":
        columns = [7 * field + value for field in range(4) for value in range(4)]
        old = weights_of(before)["deep.0.weight"][:, [*columns, 28]]
        assert weights_of(now)["deep.0.weight"].tobytes() == np.ascontiguousarray(old).tobytes()


def test_layers_of_other_sizes_keep_their_leading_units_whatever_they_are_called(
    run_of: RunOf, config_of: Make
) -> None:
    def deeper(content: dict[str, Any]) -> None:
        content["model"] |= {"hidden": [24, 8], "dropout": 0.0}

    before = weights_of(load_trained(run_of("deepfm")))
    now = started(changed(config_of("deepfm"), deeper), run_of("deepfm"))
    found, fate = weights_of(now), fates(now.report)
    assert found["deep.0.weight"][:16].tobytes() == before["deep.0.weight"].tobytes()
    # The last layer had the units of the first layer as inputs, and has those of a new layer now.
    assert (fate["deep.0.weight"], fate["deep.2.weight"], fate["deep.4.weight"]) == ("widened", "new", "new")
    assert fate["deep.4.bias"] == "taken"
    same = started(changed(config_of("deepfm"), lambda content: content["model"].update(dropout=0.0)), run_of("deepfm"))
    assert set(fates(same.report).values()) == {"taken"}
    assert weights_of(same)["deep.2.weight"].tobytes() == before["deep.3.weight"].tobytes()


def test_another_sparse_optimizer_begins_anew(run_of: RunOf, config_of: Make) -> None:
    before = load_trained(run_of("deepfm")).tables["users"].export_rows()
    now = started(changed(config_of(), with_sparse(type="adam", lr=0.01)), run_of("deepfm"))
    table = now.tables["users"]
    rows = table.export_rows()
    assert rows[1].tobytes() == before[1].tobytes()
    assert rows[3].tobytes() == before[3].tobytes()
    assert not rows[2].any()
    assert table.steps == 0
    assert not any(entry.optimizer for entry in now.report.tables)


def test_another_model_takes_the_tables_alone(run_of: RunOf, config_of: Make) -> None:
    config = config_of("dlrm")
    now = started(config, run_of("deepfm"))
    assert {entry.change for entry in now.report.tables} == {"taken"}
    assert {entry.change for entry in now.report.weights} == {"new", "gone"}
    assert now.report.notes[0] == "the source is another model (deepfm), this one is dlrm"
    fresh = started(config, run_of("din"), partial=True)
    fate = fates(fresh.report)
    assert fate["top.0.weight"] == "cut"
    assert fate["top.2.weight"] == "taken"
    old, new = weights_of(load_trained(run_of("din"))), weights_of(fresh)
    assert new["top.0.weight"].tobytes() == np.ascontiguousarray(old["top.0.weight"][:, :18]).tobytes()


def test_changed_transforms_are_named(run_of: RunOf, config_of: Make) -> None:
    def other_seed(content: dict[str, Any]) -> None:
        for feature in content["features"]:
            if feature["name"] == "item":
                feature["transforms"][0]["seed"] = 6

    report = started(changed(config_of(), other_seed), run_of("deepfm")).report
    assert report.notes == ["feature item: its transforms changed; its ids or values may mean something else"]


def test_a_plan_is_what_would_be_taken_and_changes_nothing(run_of: RunOf, config_of: Make) -> None:
    config = changed(config_of(), with_colors, without("tags", "tags"))
    before = sorted(path.stat().st_mtime_ns for path in run_of("deepfm").rglob("*"))
    report = plan_start(config, StartFrom(run_of("deepfm")))
    assert report == started(config, run_of("deepfm")).report
    assert sorted(path.stat().st_mtime_ns for path in run_of("deepfm").rglob("*")) == before
    lines = report.text().splitlines()
    assert lines[0] == f"starts from the run {run_of('deepfm')} after step 10"
    assert any(line.split() == ["table", "colors", "new", "dim", "8"] for line in lines)
    assert any(line.startswith("table tags") and "gone" in line for line in lines)
