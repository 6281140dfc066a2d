"""Trains models that start from a run: they begin with what they took, and learn on from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import ConfigError
from tests.integration.trainer.warm_starts import (
    changed,
    fates,
    of_dim,
    started,
)
from trainer import load_trained, train
from trainer.config import TrainConfig
from trainer.label_config import LabelConfig
from trainer.loop import TrainingLoop

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]
RunOf = Callable[[str], Path]


def test_train_begins_with_what_it_took_and_reports_it(
    run_of: RunOf, clicks: Path, config_of: Make, fresh_clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_of("deepfm")
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
    report = train(config, clicks, output=tmp_path / "new", start_from=before, **options)
    assert scores[0].tobytes() == load_trained(run_of("deepfm")).evaluate(fresh_clicks).scores.tobytes()
    assert report.started is not None
    assert report.steps == 2
    saved = json.loads((tmp_path / "new" / "report.json").read_text())["started"]
    assert saved["source"] == f"the run {run_of('deepfm')} after step 10"
    assert {entry["change"] for entry in (*saved["tables"], *saved["weights"])} == {"taken"}
    again = train(config_of(epochs="2"), clicks, output=tmp_path / "new", resume=True, **options)
    assert again.started == report.started
    with pytest.raises(ConfigError, match="leave start_from") as caught:
        train(config, clicks, output=tmp_path / "new", start_from=run_of("deepfm"), resume=True, **options)
    assert caught.value.field == "start_from"
    with pytest.raises(ConfigError, match="holds checkpoints"):
        train(config, clicks, output=run_of("deepfm"), start_from=run_of("deepfm"), **options)


def test_another_dense_optimizer_begins_anew(run_of: RunOf, config_of: Make, clicks: Path, tmp_path: Path) -> None:
    def adagrad(content: dict[str, Any]) -> None:
        content["optimizer"]["dense"] = {"type": "Adagrad", "lr": 0.01}

    config = changed(config_of(epochs="1"), adagrad)
    now = started(config, run_of("deepfm"))
    assert not any(entry.optimizer for entry in now.report.weights)
    assert all(float(entry["sum"].sum()) == 0 for entry in now.dense.state_dict()["state"].values())
    train(config, clicks, output=tmp_path, start_from=run_of("deepfm"), limit=300, progress=False)


def test_another_label_is_learned_with_the_same_rows(
    run_of: RunOf, config_of: Make, clicks: Path, tmp_path: Path
) -> None:
    data = pq.read_table(clicks / "a.parquet")
    bought = pa.array(data.column("clicked").to_numpy()[::-1].copy())
    pq.write_table(data.append_column("bought", bought).drop_columns(["clicked"]), tmp_path / "a.parquet")
    config = config_of(epochs="1").model_copy(update={"label": LabelConfig(column="bought")})
    report = train(
        config, tmp_path / "a.parquet", output=tmp_path / "new", start_from=run_of("deepfm"), progress=False, limit=600
    )
    assert report.started is not None
    assert set(fates(report.started).values()) == {"taken"}


def test_rows_beyond_memory_are_the_same(run_of: RunOf, config_of: Make, clicks: Path, tmp_path: Path) -> None:
    config = changed(config_of(epochs="1", batch_size="16"), of_dim(12, "uniform"))
    content = []
    for name, dram_bytes in (("whole", None), ("bounded", 90_000)):
        report = train(
            config,
            clicks,
            output=tmp_path / name,
            start_from=run_of("deepfm"),
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
