"""Early stopping keeps and publishes the model of the best epoch, also when the run is killed and resumed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import open_delta, open_version
from storage.errors import ConfigError
from tests.integration.trainer.test_training import at_step, content
from trainer import TrainReport, load_trained, train, update
from trainer.checkpoint import CommitLog, read_state
from trainer.config import TrainConfig
from trainer.loop import TrainingLoop

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]
# So few rows that the model is best after three epochs, of 24 steps each, and then gets worse.
ROWS = 768
STOPPING = "{metric: log_loss, patience: 2}"


@pytest.fixture
def stopping(config_of: Make) -> Callable[..., TrainConfig]:
    """Makes the configuration; options are those of training."""

    def made(**options: str) -> TrainConfig:
        config = config_of("deepfm", **{"epochs": "9", "batch_size": "32", **options})
        schedule = {"type": "cosine", "warmup_steps": 10, "steps": 100}
        content = config.optimizer.model_dump() | {"schedule": schedule}
        content["sparse"]["lr"] = 0.3
        return config.model_copy(update={"optimizer": type(config.optimizer).model_validate(content)})

    return made


def quiet(config: TrainConfig, data: Path, output: Path, **options: object) -> TrainReport:
    return train(config, data, output=output, limit=ROWS, progress=False, **options)  # type: ignore[arg-type]


def test_the_model_of_the_best_epoch_is_kept_published_and_updated(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, stopping: Make
) -> None:
    config = stopping(early_stopping=STOPPING)
    report = quiet(config, clicks, tmp_path / "run", valid=fresh_clicks, repository=tmp_path / "models")
    best = report.best_epoch
    assert best is not None
    assert best < len(report.epochs) == best + 2 < 9
    losses = [entry.log_loss for entry in report.epochs]
    assert report.log_loss == min(losses, key=lambda loss: loss or 1.0) == losses[best - 1]
    # It is the run that trained as many epochs and no more.
    plain = quiet(stopping(epochs=str(best)), clicks, tmp_path / "plain", valid=fresh_clicks)
    kept, alone = content(config, report.checkpoint), content(config, plain.checkpoint)
    for each in (kept, alone):
        del each["history"], each["position"]
    assert kept == alone
    assert (report.auc, report.steps, report.rows) == (plain.auc, plain.steps, plain.rows)
    trained = load_trained(tmp_path / "run")
    np.testing.assert_array_equal(trained.predict(fresh_clicks), load_trained(tmp_path / "plain").predict(fresh_clicks))
    assert report.published is not None
    assert open_version(report.published).manifest.version == 1
    # A published run that is resumed does nothing, and newer rows are trained on from the best epoch.
    again = quiet(config, clicks, tmp_path / "run", valid=fresh_clicks, repository=tmp_path / "models", resume=True)
    assert (again.published, again.best_epoch, again.auc) == (report.published, best, report.auc)
    done = update(tmp_path / "run", fresh_clicks, repository=tmp_path / "models", progress=False)
    assert any(table.rows for table in open_delta(done.published[-1]).tables)


@pytest.mark.parametrize("when", ["in an epoch", "at the end of the best", "before going back", "after going back"])
def test_a_run_that_was_killed_keeps_the_same_model(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, stopping: Make, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    config = stopping(early_stopping=STOPPING, checkpoint_every_steps="7")
    whole = quiet(config, clicks, tmp_path / "whole", valid=fresh_clicks, repository=tmp_path / "models")
    best = whole.best_epoch or 0

    def crash(*_: object) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patched:
        if when == "in an epoch":
            at_step(patched, 24 * best + 11, lambda: signal.raise_signal(signal.SIGINT))
        elif when == "at the end of the best":
            at_step(patched, 24 * best + 1, lambda: signal.raise_signal(signal.SIGINT))
        elif when == "before going back":
            patched.setattr(TrainingLoop, "go_back", crash)
        else:
            patched.setattr(TrainingLoop, "publish", crash)
        with pytest.raises((OSError, KeyboardInterrupt)):
            quiet(config, clicks, tmp_path / "cut", valid=fresh_clicks, repository=tmp_path / "others")
    resumed = quiet(config, clicks, tmp_path / "cut", valid=fresh_clicks, repository=tmp_path / "others", resume=True)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)
    assert (resumed.best_epoch, resumed.epochs, resumed.auc) == (best, whole.epochs, whole.auc)
    assert resumed.published is not None
    assert whole.published is not None
    one, other = (open_version(path).manifest for path in (resumed.published, whole.published))
    assert one.dense_fingerprint == other.dense_fingerprint != ""
    assert [table.fingerprint for table in one.tables] == [table.fingerprint for table in other.tables]


def test_epochs_that_are_added_to_a_run_that_did_not_stop_are_trained(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, stopping: Make
) -> None:
    whole = quiet(stopping(early_stopping=STOPPING), clicks, tmp_path / "whole", valid=fresh_clicks)
    best = whole.best_epoch or 0
    fewer = stopping(early_stopping=STOPPING, epochs=str(best + 1))
    first = quiet(fewer, clicks, tmp_path / "run", valid=fresh_clicks)
    assert first.best_epoch == best == read_state(first.checkpoint).position.epoch
    assert len(first.epochs) == best + 1
    longer = quiet(stopping(early_stopping=STOPPING), clicks, tmp_path / "run", valid=fresh_clicks, resume=True)
    assert content(fewer, longer.checkpoint) == content(fewer, whole.checkpoint)


def test_the_commit_of_the_best_epoch_outlives_any_number_of_later_ones(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, stopping: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.checkpoint.log.MAX_LINKS", 2)
    config = stopping(early_stopping="{patience: 4}", checkpoint_every_steps="3")
    report = quiet(config, clicks, tmp_path, valid=fresh_clicks)
    assert report.best_epoch is not None
    assert report.best_epoch < len(report.epochs) == report.best_epoch + 4
    assert read_state(report.checkpoint).position.epoch == report.best_epoch
    with CommitLog(tmp_path) as log:
        assert log.newest is not None
        assert log.newest.state.stopped


def test_a_run_without_validation_rows_is_refused(clicks: Path, tmp_path: Path, stopping: Make) -> None:
    with pytest.raises(ConfigError, match=r"training\.early_stopping: .* give validation rows") as caught:
        quiet(stopping(early_stopping=STOPPING), clicks, tmp_path)
    assert caught.value.field == "training.early_stopping"
