"""Training on a share of the negative rows: which rows, and probabilities as calibrated as without."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import open_version
from storage.errors import ConfigError, Unsupported
from tests.e2e.test_tasks_served import ORDER, text_of
from tests.integration.trainer.test_training import at_step, content, quiet
from trainer import load_trained, update
from trainer.config import TrainConfig, parse_text
from trainer.row_sources import rows_to_learn, training_rows

ROWS = 20_000


def clicks(rows: int, seed: int) -> pa.Table:
    """Makes rows of which one in twenty is clicked, more where an item is liked."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 40, rows), rng.integers(0, 60, rows)
    logit = -3.6 + 1.2 * np.sin(item) + 0.6 * np.cos(user)
    return pa.table(
        {
            "user": user,
            "item": item,
            "clicked": pa.array([[each] for each in item.tolist()]),
            "price": np.arange(rows, dtype=np.float32) / rows,
            "click": rng.random(rows) < 1 / (1 + np.exp(-logit)),
        }
    )


def config_of(rate: float, learned: str = "") -> TrainConfig:
    learned = learned or "tasks: [{label: click, metrics: [auc, log_loss, calibration, calibration_error]}]"
    text = text_of("order").replace(ORDER, learned).replace("dense: {lr: 0.01}", "dense: {lr: 0.002}")
    return parse_text(f"{text}\ndata: {{negative_sampling: {rate}}}")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("clicks")
    for name, rows, seed in (("train", ROWS, 1), ("valid", ROWS, 2), ("newer", 2000, 3)):
        pq.write_table(clicks(rows, seed), place / f"{name}.parquet", row_group_size=1500)
    return place


def test_positive_rows_all_stay_and_the_share_of_the_others(data: Path) -> None:
    config = config_of(0.1)
    opened = training_rows(config, data / "train.parquet", learns=True)
    kept, again = rows_to_learn(config, opened), rows_to_learn(config, opened)
    labels = pq.read_table(data / "train.parquet")["click"].to_numpy(zero_copy_only=False)
    found = kept.read()["click"].to_numpy(zero_copy_only=False)
    assert found.sum() == labels.sum()
    assert (~found).sum() == pytest.approx(0.1 * (~labels).sum(), rel=0.1)
    assert again.read() == kept.read()
    assert kept.range(50, 90).read() == kept.read().slice(50, 40)
    more = rows_to_learn(config_of(0.3), opened)
    assert kept.fingerprint != more.fingerprint != opened.fingerprint
    # A row that is kept at a small share is kept at a larger one: the draw is that of the row.
    few, many = ({str(row) for row in each.read().to_pylist()} for each in (kept, more))
    assert few <= many


def test_a_place_in_the_data_is_that_of_the_file(data: Path) -> None:
    config = config_of(0.1)
    opened = training_rows(config, data / "train.parquet", learns=True)
    kept = rows_to_learn(config, opened)
    rows = [row for row in range(opened.rows) if opened.place_of(row) == kept.place_of(500)]
    assert opened.range(rows[0], rows[0] + 1).read() == kept.range(500, 501).read()


def test_probabilities_are_as_calibrated_as_those_of_all_rows(data: Path, tmp_path: Path) -> None:
    valid = data / "valid.parquet"
    sampled = quiet(config_of(0.1), data / "train.parquet", tmp_path / "sampled", valid=valid)
    every = quiet(config_of(1.0), data / "train.parquet", tmp_path / "every", valid=valid)
    assert sampled.rows < 0.2 * every.rows
    metrics = sampled.metrics["score"]
    assert 0.85 < (metrics["calibration"] or 0) < 1.15
    assert (metrics["log_loss"] or 1) < (every.metrics["score"]["log_loss"] or 0) + 0.01
    trained = load_trained(tmp_path / "sampled")
    corrected = trained.predict(valid)
    trained.model.log_odds_shift = 0.0
    plain = trained.predict(valid)
    np.testing.assert_allclose(corrected, plain / (plain + (1 - plain) / 0.1), rtol=1e-4)
    labels = pq.read_table(valid)["click"].to_numpy(zero_copy_only=False)
    assert plain.mean() > 3 * labels.mean(), "without the correction nothing is calibrated"


def test_what_is_published_is_corrected_and_updates_sample_too(data: Path, tmp_path: Path) -> None:
    config = config_of(0.2)
    models = tmp_path / "models"
    report = quiet(config, data / "train.parquet", tmp_path / "run", repository=models)
    assert report.published is not None
    golden = open_version(report.published).golden()
    assert golden.outputs["score"].mean() < 0.2
    done = update(tmp_path / "run", data / "newer.parquet", repository=models, progress=False)
    assert done.rows < 0.4 * 2000


def test_another_share_in_a_published_run_is_served_from_its_next_publish_on(data: Path, tmp_path: Path) -> None:
    run, models, newer = tmp_path / "run", tmp_path / "models", data / "newer.parquet"
    quiet(config_of(0.2), data / "train.parquet", run, repository=models)
    (run / "config.json").write_text(config_of(0.05).model_dump_json())
    with pytest.raises(Unsupported, match=r"data\.negative_sampling.*publish a version"):
        load_trained(run).publish(models, kind="delta")
    done = update(run, newer, repository=models, progress=False)
    assert [path.relative_to(models).as_posix() for path in done.published] == ["order/2"]
    trained = load_trained(run)
    golden = open_version(done.published[0]).golden()
    assert trained.model.log_odds_shift == pytest.approx(np.log(0.05))
    assert golden.outputs["score"].mean() < 0.5 * open_version(models / "order" / "1").golden().outputs["score"].mean()
    again = update(run, newer, repository=models, progress=False)
    assert [path.relative_to(models).as_posix() for path in again.published] == ["order/2/deltas/000001"]


def test_a_resumed_run_sees_the_same_rows(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(0.1)
    whole = quiet(config, data / "train.parquet", tmp_path / "whole")
    with monkeypatch.context() as patched:
        at_step(patched, 20, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            quiet(config, data / "train.parquet", tmp_path / "cut")
    resumed = quiet(config, data / "train.parquet", tmp_path / "cut", resume=True)
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)
    with pytest.raises(ConfigError, match=r"data.negative_sampling was 0.1 and is 0.2"):
        quiet(config_of(0.2), data / "train.parquet", tmp_path / "cut", resume=True)


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_share_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"data\.negative_sampling"):
        config_of(rate)


def test_other_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.negative_sampling: corrects the probability of one binary task"):
        config_of(0.5, "tasks: [{label: click}, {name: price, label: price, loss: mean_squared_error}]")
