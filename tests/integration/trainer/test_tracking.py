"""Tracks read back with the readers of TensorBoard and MLflow: what is in them, also after a kill, and what is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.errors import ConfigError
from trainer import TrainReport, train
from trainer.checkpoint import checkpoints
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.loop import TrainingLoop

Make = Callable[..., TrainConfig]
STEPS = 8  # of an epoch: 2,000 rows in batches of 256


def tracked(make: Make, tracking: object, **training: str) -> TrainConfig:
    content = make(**training).model_dump(mode="json")
    return parse_config(TrainConfig, {**content, "tracking": tracking})


def trained(
    config: TrainConfig, clicks: Path, output: Path, valid: Path | None = None, resume: bool = False
) -> TrainReport:
    return train(config, clicks, output=output, valid=valid, limit=2000, progress=False, resume=resume)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(entry.step, entry.value) for entry in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the training in the middle of a step, without a commit."""
    real = TrainingLoop._step

    def stepping(loop: TrainingLoop, batch: object) -> float:
        if loop.position.step + 1 == step:
            raise MemoryError
        return real(loop, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(TrainingLoop, "_step", stepping)


def test_tensorboard_has_steps_epochs_metrics_stages_and_tables(
    clicks: Path, fresh_clicks: Path, config_of: Make, tmp_path: Path
) -> None:
    config = tracked(config_of, {"type": "tensorboard", "every_steps": 2})
    report = trained(config, clicks, tmp_path / "run", fresh_clicks)
    found = scalars(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in found["train/loss"]] == list(range(2, 2 * STEPS + 1, 2))
    assert {value for _, value in found["train/lr_sparse"]} == {np.float32(0.2)}
    assert {value for _, value in found["train/lr_dense"]} == {np.float32(0.005)}
    assert found["epoch"] == [(STEPS, 1.0), (2 * STEPS, 2.0)]
    assert [value for _, value in found["epoch/loss"]] == pytest.approx([entry.loss for entry in report.epochs])
    assert [step for step, _ in found["valid/auc"]] == [STEPS, 2 * STEPS]
    assert [value for _, value in found["valid/auc"]] == pytest.approx([entry.auc for entry in report.epochs])
    assert found["valid/log_loss"][-1][1] == pytest.approx(report.log_loss)
    users = next(table for table in report.tables if table.name == "users")
    assert found["tables/users/rows"][-1] == (2 * STEPS, users.rows)
    assert all(found[f"seconds/{stage}"][0][1] > 0 for stage in ("read", "features", "lookup", "dense", "update"))


def test_tensorboard_lists_the_parameters(clicks: Path, config_of: Make, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(tracked(config_of, "tensorboard", epochs="1"), clicks, tmp_path / "run")
    reader = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    text = reader.Tensors("parameters/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| optimizer.sparse.lr | `0.2` |" in text
    assert "| tables.users.dim | `8` |" in text
    assert "_hparams_/session_start_info" in reader.summary_metadata


def test_a_killed_and_resumed_training_has_the_track_of_an_undisturbed_one(
    clicks: Path, fresh_clicks: Path, config_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tracked(config_of, {"type": "tensorboard", "every_steps": 1})
    trained(config, clicks, tmp_path / "whole", fresh_clicks)
    with monkeypatch.context() as patched:
        killed_at(13, patched)
        with pytest.raises(MemoryError):
            trained(config, clicks, tmp_path / "killed", fresh_clicks)
    trained(config, clicks, tmp_path / "killed", fresh_clicks, resume=True)
    whole, killed = (scalars(tmp_path / name / "tensorboard") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    for tag in ("train/loss", "train/lr_dense", "epoch/loss", "valid/auc", "tables/items/rows"):
        assert whole[tag] == killed[tag], tag


def test_tracking_changes_nothing_that_is_trained(clicks: Path, config_of: Make, tmp_path: Path) -> None:
    trained(config_of(epochs="1"), clicks, tmp_path / "plain")
    trained(tracked(config_of, "tensorboard", epochs="1"), clicks, tmp_path / "tracked")
    plain, with_track = (checkpoints(tmp_path / name)[-1] for name in ("plain", "tracked"))
    assert (plain / "dense.safetensors").read_bytes() == (with_track / "dense.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("tracker", "module", "install"),
    [("tensorboard", "torch.utils.tensorboard", "emberline[tensorboard]"), ("mlflow", "mlflow", "emberline[mlflow]")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tracker: str,
    module: str,
    install: str,
    clicks: Path,
    config_of: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"tracking: .* cannot be imported") as raised:
        trained(tracked(config_of, tracker), clicks, tmp_path / "run")
    assert install in str(raised.value)


def test_a_wrong_tracker_is_refused_by_its_path(config_of: Make) -> None:
    with pytest.raises(ConfigError, match=r"tracking.type: expected one of 'tensorboard', 'mlflow', got 'mlfow'"):
        tracked(config_of, "mlfow")
    with pytest.raises(ConfigError, match=r"tracking.every_step: unknown key; did you mean 'every_steps'"):
        tracked(config_of, {"type": "mlflow", "every_step": 3})


@pytest.mark.slow  # MLflow makes the tables of a new store in ten seconds
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_has_one_run_also_after_a_kill(
    clicks: Path, fresh_clicks: Path, config_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    config = tracked(config_of, {"type": "mlflow", "every_steps": 1, "uri": uri, "experiment": "shop"})
    with monkeypatch.context() as patched:
        killed_at(13, patched)
        with pytest.raises(MemoryError):
            trained(config, clicks, tmp_path / "run", fresh_clicks)
    import mlflow

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("shop").experiment_id
    (broken,) = client.search_runs([experiment])
    assert broken.info.status == "FAILED"
    report = trained(config, clicks, tmp_path / "run", fresh_clicks, resume=True)
    (run,) = client.search_runs([experiment])
    assert run.info.run_id == broken.info.run_id
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["optimizer.sparse.lr"] == "0.2"
    assert run.data.params["run.rows"] == "2000"
    assert run.data.metrics["valid/auc"] == pytest.approx(report.auc)
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == list(range(1, 2 * STEPS + 1))
