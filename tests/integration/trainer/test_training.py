"""Whole runs: models learn, a resumed run is the uninterrupted one to the bit, and bad runs stop with a reason."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.errors import ConfigError, IntegrityError, InvalidInput
from trainer import TrainReport, load_trained, train
from trainer.checkpoint import checkpoints, load_checkpoint, read_state
from trainer.config import TrainConfig
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer

Make = Callable[..., TrainConfig]


def quiet(config: TrainConfig, data: Path, output: Path, **options: object) -> TrainReport:
    return train(config, data, output=output, progress=False, **options)  # type: ignore[arg-type]


def content(config: TrainConfig, folder: Path) -> dict[str, object]:
    """Returns everything that a commit leads to but the wall-clock time.

    Stamps are left out, because they count commits.
    """
    tables = build_tables(config)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, tables)
        optimizer = dense_optimizer(config.optimizer.dense, model)
        state = load_checkpoint(folder, model, tables, optimizer)
        found: dict[str, object] = {"random": torch.get_rng_state().tolist()}
    found["position"] = replace(state.position, seconds=0.0)
    found["history"] = state.history
    found["model"] = {name: value.tolist() for name, value in model.state_dict().items()}
    found["optimizer"] = str(optimizer.state_dict())
    for name, table in tables.items():
        rows, counts = table.export_rows()[:4], table.export_counts()
        found[name] = [array.tobytes() for array in (*rows, *counts, table.removed()[0])]
    return found


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Runs `action` in the middle of training step `step`."""
    real = TrainingLoop._step

    def stepping(loop: TrainingLoop, batch: object) -> float:
        if loop.position.step + 1 == step:
            action()
        return real(loop, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(TrainingLoop, "_step", stepping)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepfm", "dlrm", "din"])
def test_a_model_learns_the_planted_signal(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, config_of: Make, model: str
) -> None:
    config = config_of(model, batch_size="64", epochs="5", checkpoint_every_steps="0")
    report = quiet(config, clicks, tmp_path, valid=fresh_clicks)
    assert report.auc is not None
    assert report.auc > 0.75
    assert report.epochs[-1].loss < report.epochs[0].loss - 0.05
    assert report.rows == 5 * 6000
    trained = load_trained(tmp_path)
    assert trained.evaluate(fresh_clicks).auc == pytest.approx(report.auc, abs=1e-12)


@pytest.mark.parametrize("step", [3, 30, 44])
def test_ctrl_c_saves_a_checkpoint_and_the_resumed_run_is_the_same_to_the_bit(
    clicks: Path, tmp_path: Path, config_of: Make, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    config = config_of()
    whole = quiet(config, clicks, tmp_path / "whole", valid=0.1)
    with monkeypatch.context() as patched:
        at_step(patched, step, lambda: signal.raise_signal(signal.SIGINT))
        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            quiet(config, clicks, tmp_path / "cut", valid=0.1)
        assert signal.getsignal(signal.SIGINT) is handler
    assert read_state(checkpoints(tmp_path / "cut")[-1]).position.step == min(step, whole.steps)
    resumed = quiet(config, clicks, tmp_path / "cut", valid=0.1, resume=True)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)
    assert (resumed.auc, resumed.log_loss, resumed.epochs) == (whole.auc, whole.log_loss, whole.epochs)


def test_a_crashed_run_goes_on_from_its_last_checkpoint(
    clicks: Path, tmp_path: Path, config_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        raise OSError("the power went")

    config = config_of("din")
    whole = quiet(config, clicks, tmp_path / "whole")
    with monkeypatch.context() as patched:
        at_step(patched, 33, crash)
        with pytest.raises(OSError, match="power"):
            quiet(config, clicks, tmp_path / "cut")
    assert read_state(checkpoints(tmp_path / "cut")[-1]).position.step == 30
    resumed = quiet(config, clicks, tmp_path / "cut", resume=True)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)


def test_more_epochs_may_be_added_and_nothing_else(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    quiet(config_of(epochs="1"), clicks, tmp_path)
    assert quiet(config_of(epochs="2"), clicks, tmp_path, resume=True).rows == 12_000
    with pytest.raises(ConfigError, match=r"another configuration: training.seed was 3 and is 9"):
        quiet(config_of(epochs="2", seed="9"), clicks, tmp_path, resume=True)
    with pytest.raises(ConfigError, match="other data"):
        quiet(config_of(epochs="2"), clicks, tmp_path, resume=True, limit=500)
    with pytest.raises(ConfigError, match="holds checkpoints"):
        quiet(config_of(epochs="2"), clicks, tmp_path)
    with pytest.raises(ConfigError, match="no checkpoint to resume"):
        quiet(config_of(), clicks, tmp_path / "other", resume=True)


def test_a_changed_byte_in_a_checkpoint_is_noticed(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    quiet(config_of(epochs="1"), clicks, tmp_path)
    paths = [folder / "tables" / "items.safetensors" for folder in reversed(checkpoints(tmp_path))]
    path = next(path for path in paths if path.exists())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"items\.safetensors"):
        load_trained(tmp_path)


def test_threads_of_features_change_nothing_and_the_report_has_the_stages(
    clicks: Path, tmp_path: Path, config_of: Make
) -> None:
    config = config_of()
    several = config.model_copy(update={"training": config.training.model_copy(update={"feature_threads": 3})})
    one = quiet(config, clicks, tmp_path / "one")
    three = quiet(several, clicks, tmp_path / "three")
    assert content(config, one.checkpoint) == content(config, three.checkpoint)
    assert three.profile is not None
    assert three.profile.steps == three.steps
    stages = {stage.name: stage for stage in three.profile.stages}
    assert stages["features"].threads == 3
    assert all(stage.seconds > 0 for stage in stages.values())
    in_step = sum(stages[name].share for name in ("lookup", "dense", "update"))
    assert in_step + three.profile.waited_seconds / three.profile.seconds <= 1.0
    written = json.loads((tmp_path / "three" / "report.json").read_text())["profile"]
    assert written["bound_by"] in stages


def test_training_leaves_the_callers_random_numbers_alone(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quiet(config_of(epochs="1"), clicks, tmp_path, limit=300)
    assert torch.equal(torch.rand(3), expected)


def test_a_value_that_is_not_finite_is_named(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    table = pq.read_table(clicks / "a.parquet").slice(0, 400)
    price = table.column("price").to_numpy().copy()
    price[123] = np.inf
    position = table.column_names.index("price")
    pq.write_table(table.set_column(position, "price", pa.array(price)), tmp_path / "a.parquet")
    with pytest.raises(InvalidInput) as caught:
        quiet(config_of(), tmp_path / "a.parquet", tmp_path / "out")
    assert caught.value.field in {"dense", "price"}


def test_weights_that_the_last_step_made_infinite_are_not_saved(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    config = config_of()
    dense = config.optimizer.dense.model_copy(update={"lr": 1e39})
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"dense": dense})})
    with pytest.raises(ConfigError, match=r"step 1: the weight '.*' is not finite any more; .* good state: none"):
        quiet(config, clicks, tmp_path / "out", limit=64)
    assert not list((tmp_path / "out").glob("checkpoints/commit-*"))


def test_a_diverging_loss_stops_with_advice(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    config = config_of()
    sparse = config.optimizer.sparse.model_copy(update={"lr": 1e30})
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"sparse": sparse})})
    with pytest.raises(ConfigError, match=r"the loss is (nan|inf).*lower optimizer"):
        quiet(config, clicks, tmp_path)


def test_validation_rows_are_the_last_ones_and_are_not_trained_on(
    clicks: Path, tmp_path: Path, config_of: Make
) -> None:
    report = quiet(config_of(epochs="1"), clicks, tmp_path, valid=0.25)
    assert (report.rows, report.valid_rows) == (4500, 1500)
    assert json.loads((tmp_path / "report.json").read_text())["rows_per_second"] > 0
    for wrong in (0.0, 1.0, 1.5):
        with pytest.raises(ConfigError, match="fraction"):
            quiet(config_of(epochs="1"), clicks, tmp_path / "x", valid=wrong)


def test_predict_needs_no_label_and_keeps_the_order_of_rows(clicks: Path, tmp_path: Path, config_of: Make) -> None:
    quiet(config_of(epochs="1"), clicks, tmp_path / "out")
    trained = load_trained(tmp_path / "out")
    table = pq.read_table(clicks / "b.parquet")
    pq.write_table(table.drop_columns(["clicked"]), tmp_path / "b.parquet")
    scores = trained.predict(tmp_path / "b.parquet")
    assert len(scores) == table.num_rows
    pq.write_table(table.drop_columns(["clicked"]).slice(100, 5), tmp_path / "few.parquet")
    np.testing.assert_allclose(trained.predict(tmp_path / "few.parquet"), scores[100:105], atol=1e-6)


def test_a_run_that_is_done_is_published_once_however_often_it_is_resumed(
    clicks: Path, tmp_path: Path, config_of: Make
) -> None:
    def published(folder: str, **options: object) -> list[str]:
        config = config_of(epochs="1")
        config = config.model_copy(update={"publish": config.publish.model_copy(update=options)})
        again = bool(checkpoints(tmp_path / "run"))
        report = quiet(config, clicks, tmp_path / "run", repository=tmp_path / folder, resume=again)
        assert report.published is not None
        names = sorted(path.name for path in report.published.parent.iterdir() if path.name.isdigit())
        assert report.published.name == names[-1]
        return names

    assert published("models") == ["1"]
    assert published("models") == ["1"]
    assert published("models", row_types={"default": "int8"}) == ["1", "2"]
    assert published("elsewhere", row_types={"default": "int8"}) == ["1"]
