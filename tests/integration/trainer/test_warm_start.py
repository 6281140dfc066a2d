"""A model with other features, tables or dims starts from a run: what is the same stays to the bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.errors import CheckpointError, ConfigError, EmberlineError, IntegrityError, NotFound
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
from trainer import StartFrom, load_trained, plan_start, train
from trainer.checkpoint import checkpoints, load_checkpoint, read_commit
from trainer.config import TrainConfig
from trainer.label_config import LabelConfig
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]
MODELS = ("deepfm", "dlrm", "din")


@pytest.fixture(scope="module")
def runs(clicks: Path, clicks_config: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains one run of each model, in commits that are full ones and increments."""
    folder = tmp_path_factory.mktemp("runs")
    for model in MODELS:
        config = clicks_config(model, epochs="1", checkpoint_every_steps="2")
        train(config, clicks, output=folder / model, progress=False, limit=2500)
        assert read_commit(checkpoints(folder / model)[-1]).links > 0
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_the_same_configuration_starts_with_the_same_model_to_the_bit(
    runs: Path, config_of: Make, fresh_clicks: Path, model: str
) -> None:
    config, before = config_of(model), load_trained(runs / model)
    now = started(config, runs / model)
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
        load_checkpoint(checkpoints(runs / model)[-1], fresh, tables, optimizer)
    assert str(now.dense.state_dict()) == str(optimizer.state_dict())


def test_train_begins_with_what_it_took_and_reports_it(
    runs: Path, clicks: Path, config_of: Make, fresh_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = []
    real = TrainingLoop.run

    def run(loop: TrainingLoop) -> None:
        result = loop.evaluate()
        assert result is not None
        scores.append(result.scores)
        real(loop)

    monkeypatch.setattr(TrainingLoop, "run", run)
    config = config_of(epochs="1")
    options: dict[str, Any] = {"valid": fresh_clicks, "limit": 500, "progress": False}
    report = train(config, clicks, output=tmp_path / "new", start_from=runs / "deepfm", **options)
    assert scores[0].tobytes() == load_trained(runs / "deepfm").evaluate(fresh_clicks).scores.tobytes()
    assert report.started is not None
    assert report.steps == 2
    saved = json.loads((tmp_path / "new" / "report.json").read_text())["started"]
    assert saved["source"] == f"the run {runs / 'deepfm'} after step 10"
    assert {entry["change"] for entry in (*saved["tables"], *saved["weights"])} == {"taken"}
    again = train(config_of(epochs="2"), clicks, output=tmp_path / "new", resume=True, **options)
    assert again.started == report.started
    with pytest.raises(ConfigError, match="leave start_from") as caught:
        train(config, clicks, output=tmp_path / "new", start_from=runs / "deepfm", resume=True, **options)
    assert caught.value.field == "start_from"
    with pytest.raises(ConfigError, match="holds checkpoints"):
        train(config, clicks, output=runs / "deepfm", start_from=runs / "deepfm", **options)


@pytest.mark.parametrize("model", MODELS)
def test_a_new_feature_leaves_the_columns_of_the_others(
    runs: Path, config_of: Make, fresh_clicks: Path, model: str
) -> None:
    now = started(changed(config_of(model), with_colors), runs / model)
    # The rows of the new feature are zeros and its dense value is 0, so that it adds nothing.
    expected = load_trained(runs / model).predict(fresh_clicks)
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
    runs: Path, config_of: Make, fresh_clicks: Path, model: str
) -> None:
    now = started(changed(config_of(model), reordered), runs / model)
    expected = load_trained(runs / model).predict(fresh_clicks)
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
def test_a_feature_that_is_gone_takes_its_columns_along(runs: Path, config_of: Make, model: str) -> None:
    now = started(changed(config_of(model), without("tags", "tags")), runs / model)
    weight, columns = REMOVED[model]
    before = weights_of(load_trained(runs / model))[weight]
    assert weights_of(now)[weight].tobytes() == np.ascontiguousarray(before[:, columns]).tobytes()
    assert fates(now.report)[weight] == "cut"
    (gone,) = (entry for entry in now.report.tables if entry.change == "gone")
    assert (gone.name, gone.rows) == ("tags", load_trained(runs / model).tables["tags"].size())
    assert now.report.notes == ["feature tags: gone"]


@pytest.mark.parametrize("model", MODELS)
def test_what_was_renamed_is_found_by_the_map(runs: Path, config_of: Make, fresh_clicks: Path, model: str) -> None:
    config = changed(config_of(model), renamed)
    names = {"labels": "tags", "goods": "items"}
    now = started(config, runs / model, renamed=names)
    np.testing.assert_allclose(now.predict(fresh_clicks), load_trained(runs / model).predict(fresh_clicks), atol=1e-6)
    assert set(fates(now.report).values()) == {"taken"}
    assert {entry.name: entry.source for entry in now.report.tables}["goods"] == "items"
    lost = fates(started(config, runs / model).report)
    assert lost | {"labels": "new", "goods": "new", "tags": "gone", "items": "gone"} == lost
    # Of the table alone: the feature is another one then.
    part = started(config, runs / model, renamed={"tables.labels": "tags", "goods": "items"})
    assert fates(part.report)["labels"] == "taken"
    assert "feature labels: new" in part.report.notes
    with pytest.raises(
        ConfigError, match=r"map labels=tagz: the source has no .* 'tagz'; did you mean 'tags'"
    ) as caught:
        started(config, runs / model, renamed={"labels": "tagz"})
    assert caught.value.field == "map"
    with pytest.raises(ConfigError, match=r"map lables=tags: the model has no .* did you mean 'labels'"):
        started(config, runs / model, renamed={"lables": "tags"})


@pytest.mark.parametrize("model", ["deepfm", "din"])
def test_a_wider_table_keeps_the_leading_values(runs: Path, config_of: Make, fresh_clicks: Path, model: str) -> None:
    before = load_trained(runs / model)
    now = started(changed(config_of(model), of_dim(12)), runs / model)
    # Values that begin as zeros change nothing in these models.
    np.testing.assert_allclose(now.predict(fresh_clicks), before.predict(fresh_clicks), atol=2e-6)
    assert {entry.change for entry in now.report.tables} == {"widened"}
    drawn = started(changed(config_of(model), of_dim(12, "uniform")), runs / model)
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
def test_a_narrower_table_cuts_the_rows(runs: Path, config_of: Make, model: str) -> None:
    now = started(changed(config_of(model), of_dim(5)), runs / model)
    before = load_trained(runs / model)
    assert {entry.change for entry in now.report.tables} == {"cut"}
    for name, table in now.tables.items():
        assert table.export_rows()[1].tobytes() == before.tables[name].export_rows()[1][:, :5].tobytes()
    if model == "deepfm":
        columns = [7 * field + value for field in range(4) for value in range(4)]
        old = weights_of(before)["deep.0.weight"][:, [*columns, 28]]
        assert weights_of(now)["deep.0.weight"].tobytes() == np.ascontiguousarray(old).tobytes()


def test_layers_of_other_sizes_keep_their_leading_units_whatever_they_are_called(runs: Path, config_of: Make) -> None:
    def deeper(content: dict[str, Any]) -> None:
        content["model"] |= {"hidden": [24, 8], "dropout": 0.0}

    before = weights_of(load_trained(runs / "deepfm"))
    now = started(changed(config_of("deepfm"), deeper), runs / "deepfm")
    found, fate = weights_of(now), fates(now.report)
    assert found["deep.0.weight"][:16].tobytes() == before["deep.0.weight"].tobytes()
    # The last layer had the units of the first layer as inputs, and has those of a new layer now.
    assert (fate["deep.0.weight"], fate["deep.2.weight"], fate["deep.4.weight"]) == ("widened", "new", "new")
    assert fate["deep.4.bias"] == "taken"
    same = started(changed(config_of("deepfm"), lambda content: content["model"].update(dropout=0.0)), runs / "deepfm")
    assert set(fates(same.report).values()) == {"taken"}
    assert weights_of(same)["deep.2.weight"].tobytes() == before["deep.3.weight"].tobytes()


def test_another_sparse_optimizer_begins_anew(runs: Path, config_of: Make) -> None:
    before = load_trained(runs / "deepfm").tables["users"].export_rows()
    now = started(changed(config_of(), with_sparse(type="adam", lr=0.01)), runs / "deepfm")
    table = now.tables["users"]
    rows = table.export_rows()
    assert rows[1].tobytes() == before[1].tobytes()
    assert rows[3].tobytes() == before[3].tobytes()
    assert not rows[2].any()
    assert table.steps == 0
    assert not any(entry.optimizer for entry in now.report.tables)


def test_another_dense_optimizer_begins_anew(runs: Path, config_of: Make, clicks: Path, tmp_path: Path) -> None:
    def adagrad(content: dict[str, Any]) -> None:
        content["optimizer"]["dense"] = {"type": "Adagrad", "lr": 0.01}

    config = changed(config_of(epochs="1"), adagrad)
    now = started(config, runs / "deepfm")
    assert not any(entry.optimizer for entry in now.report.weights)
    assert all(float(entry["sum"].sum()) == 0 for entry in now.dense.state_dict()["state"].values())
    train(config, clicks, output=tmp_path, start_from=runs / "deepfm", limit=300, progress=False)


def test_another_label_is_learned_with_the_same_rows(runs: Path, config_of: Make, clicks: Path, tmp_path: Path) -> None:
    data = pq.read_table(clicks / "a.parquet")
    bought = pa.array(data.column("clicked").to_numpy()[::-1].copy())
    pq.write_table(data.append_column("bought", bought).drop_columns(["clicked"]), tmp_path / "a.parquet")
    config = config_of(epochs="1").model_copy(update={"label": LabelConfig(column="bought")})
    report = train(
        config, tmp_path / "a.parquet", output=tmp_path / "new", start_from=runs / "deepfm", progress=False, limit=600
    )
    assert report.started is not None
    assert set(fates(report.started).values()) == {"taken"}


def test_another_model_takes_the_tables_alone(runs: Path, config_of: Make) -> None:
    config = config_of("dlrm")
    now = started(config, runs / "deepfm")
    assert {entry.change for entry in now.report.tables} == {"taken"}
    assert {entry.change for entry in now.report.weights} == {"new", "gone"}
    assert now.report.notes[0] == "the source is another model (deepfm), this one is dlrm"
    fresh = started(config, runs / "din", partial=True)
    fate = fates(fresh.report)
    assert fate["top.0.weight"] == "cut"
    assert fate["top.2.weight"] == "taken"
    old, new = weights_of(load_trained(runs / "din")), weights_of(fresh)
    assert new["top.0.weight"].tobytes() == np.ascontiguousarray(old["top.0.weight"][:, :18]).tobytes()


def test_changed_transforms_are_named(runs: Path, config_of: Make) -> None:
    def other_seed(content: dict[str, Any]) -> None:
        for feature in content["features"]:
            if feature["name"] == "item":
                feature["transforms"][0]["seed"] = 6

    report = started(changed(config_of(), other_seed), runs / "deepfm").report
    assert report.notes == ["feature item: its transforms changed; its ids or values may mean something else"]


def test_rows_beyond_memory_are_the_same(runs: Path, config_of: Make, clicks: Path, tmp_path: Path) -> None:
    config = changed(config_of(epochs="1", batch_size="16"), of_dim(12, "uniform"))
    content = []
    for name, dram_bytes in (("whole", None), ("bounded", 90_000)):
        report = train(
            config,
            clicks,
            output=tmp_path / name,
            start_from=runs / "deepfm",
            limit=200,
            progress=False,
            dram_bytes=dram_bytes,
        )
        trained = load_trained(tmp_path / name)
        content.append(
            {table.name: [each.tobytes() for each in table.export_rows()] for table in trained.tables.values()}
        )
    assert report.memory is not None
    assert report.memory.rows_fetched > 0
    assert content[0] == content[1]


def test_a_plan_is_what_would_be_taken_and_changes_nothing(runs: Path, config_of: Make) -> None:
    config = changed(config_of(), with_colors, without("tags", "tags"))
    before = sorted(path.stat().st_mtime_ns for path in runs.rglob("*"))
    report = plan_start(config, StartFrom(runs / "deepfm"))
    assert report == started(config, runs / "deepfm").report
    assert sorted(path.stat().st_mtime_ns for path in runs.rglob("*")) == before
    lines = report.text().splitlines()
    assert lines[0] == f"starts from the run {runs / 'deepfm'} after step 10"
    assert any(line.split() == ["table", "colors", "new", "dim", "8"] for line in lines)
    assert any(line.startswith("table tags") and "gone" in line for line in lines)


def _no_folder(place: Path) -> Path:
    (place / "file").write_text("rows")
    return place / "file"


def _half_written(place: Path) -> Path:
    shutil.rmtree(place / "run" / "checkpoints")
    return place / "run"


def _without_configuration(place: Path) -> Path:
    (place / "run" / "config.json").unlink()
    return place / "run"


def _changed_byte(place: Path) -> Path:
    path = checkpoints(place / "run")[-2] / "dense.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return place / "run"


def _other_format(place: Path) -> Path:
    path = checkpoints(place / "run")[-1] / "state.json"
    path.write_bytes(path.read_bytes().replace(b"emberline-training-", b"emberline-training-9"))
    return place / "run"


def _lost_commit(place: Path) -> Path:
    shutil.rmtree(checkpoints(place / "run")[-2])
    return place / "run"


HOSTILE: dict[str, tuple[Callable[[Path], Path | str], type[EmberlineError], str]] = {
    "missing": (lambda place: place / "nowhere", ConfigError, "is not there; expected the output folder of a run"),
    "file": (_no_folder, ConfigError, "is no folder; expected the output folder"),
    "empty": (lambda place: place, ConfigError, "is neither a run nor a model"),
    "half written": (_half_written, NotFound, "holds no checkpoint"),
    "no configuration": (_without_configuration, NotFound, r"config\.json is missing"),
    "byte": (_changed_byte, IntegrityError, "not what was saved"),
    "format": (_other_format, CheckpointError, "expected format"),
    "lost commit": (_lost_commit, IntegrityError, "is not there"),
    "url": (lambda _: "s3://bucket/run", ConfigError, "s3"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_what_is_no_run_is_refused(runs: Path, config_of: Make, tmp_path: Path, fault: str) -> None:
    shutil.copytree(runs / "deepfm", tmp_path / "run")
    make, error, words = HOSTILE[fault]
    with pytest.raises(error, match=words) as caught:
        started(config_of(), make(tmp_path))
    if isinstance(caught.value, ConfigError):
        assert caught.value.field == "start_from"


def test_a_source_of_which_nothing_fits_is_refused(runs: Path, config_of: Make) -> None:
    def other(content: dict[str, Any]) -> None:
        for feature in content["features"]:
            feature["name"] = f"my_{feature['name']}"
            feature["table"] = f"my_{feature['table']}" if feature["table"] else ""
        for table in content["tables"]:
            table["name"] = f"my_{table['name']}"

    config = changed(config_of(), other)
    with pytest.raises(ConfigError, match=r"nothing of it fits.*users.*my_users.*--map") as caught:
        started(config, runs / "deepfm")
    assert caught.value.field == "start_from"
    assert fates(started(config, runs / "deepfm", renamed={"my_users": "users"}).report)["my_users"] == "taken"
