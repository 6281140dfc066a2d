"""Trainings whose rows do not fit into the DRAM that they may take: the results are those with room for all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.checkpoint import list_deltas
from storage.errors import ConfigError
from tests.integration.trainer.update_runs import check_published, restored, snapshots
from trainer import TrainReport, follow, load_trained, train, update
from trainer.config import PublishConfig, TrainConfig, parse_text
from trainer.embedding import MemoryFigures

pytestmark = pytest.mark.slow

ROWS = 4000
USERS, ITEMS = 1200, 2000
MODELS = {
    "dlrm": "{type: dlrm, bottom: [8], top: [16]}",
    "din": "{type: din, target: item, sequence: history, hidden: [16], attention: [8]}",
}
TEXT = """
model_name: clicks
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: INT64}
  - {name: history, dtype: INT64, kind: list}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items}
  - {name: history, inputs: [history], output: ids, table: items, pooling: POOLING}
  - {name: price, inputs: [price], output: dense}
tables:
  - {name: users, dim: 8, expire_after_publishes: 3}
  - {name: items, dim: 8, admit_after: 2}
model: MODEL
optimizer: {sparse: SPARSE, dense: {lr: 0.005}}
training: {batch_size: 32, epochs: 2, seed: 3, shuffle_rows: 1500, checkpoint_every_steps: 60}
publish: {delta_every_steps: 50, cumulative_every: 3, version_every_deltas: 0, version_at_share: 0.0, keep_states: 64}
"""
SPARSE = {
    "adagrad": "{type: adagrad, lr: 0.2, initial_accumulator: 0.0001}",
    "sgd": "{type: sgd, lr: 0.5}",
}


def config_of(model: str, sparse: str) -> TrainConfig:
    pooling = "none, length: 3" if model == "din" else "mean"
    text = TEXT.replace("POOLING", pooling).replace("MODEL", MODELS[model]).replace("SPARSE", SPARSE[sparse])
    return parse_text(text)


def rows_of(count: int, seed: int) -> pa.Table:
    """Makes clicks of users and items, some of both much more frequent than others."""
    rng = np.random.default_rng(seed)
    user = (rng.beta(0.6, 2.5, count) * USERS).astype(np.int64) * 7919 - 10_000
    item = (rng.beta(0.5, 2.0, count) * ITEMS).astype(np.int64)
    history = [(rng.beta(0.5, 2.0, n) * ITEMS).astype(np.int64) for n in rng.integers(0, 5, count)]
    clicked = rng.random(count) < 1 / (1 + np.exp(-(item % 7 - 3.0) - (user % 5 - 2.0)))
    price = rng.exponential(10.0, count).astype(np.float32)
    return pa.table({"user": user, "item": item, "history": history, "price": price, "clicked": clicked})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    pq.write_table(rows_of(ROWS, 1), folder / "clicks.parquet", row_group_size=500)
    pq.write_table(rows_of(1500, 2), folder / "newer.parquet", row_group_size=500)
    pq.write_table(rows_of(800, 3), folder / "valid.parquet")
    return folder


def a_tenth(report: TrainReport) -> int:
    """Returns the bytes that hold a tenth of the rows of a training.

    A row counts with its values, its optimizer values, and its overhead.
    """
    return sum(table.rows * (4 * 16 + 112) for table in report.tables) // 10


def trained(config: TrainConfig, data: Path, place: Path, dram_bytes: int | None = None, **more: object) -> TrainReport:
    return train(
        config,
        data / "clicks.parquet",
        output=place / "run",
        repository=place / "models",
        valid=data / "valid.parquet",
        progress=False,
        dram_bytes=dram_bytes,
        **more,  # type: ignore[arg-type]
    )


def figures(report: TrainReport) -> MemoryFigures:
    assert report.memory is not None
    return report.memory


@pytest.fixture(scope="module", params=["dlrm-adagrad", "din-adagrad", "dlrm-sgd", "din-sgd"])
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    model, sparse = request.param.split("-")
    return model, sparse


@pytest.fixture(scope="module")
def both(
    kind: tuple[str, str], data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainConfig, Path, TrainReport, Path, TrainReport]:
    """Runs a training with all rows in DRAM, and one with a tenth of them."""
    config = config_of(*kind)
    whole, part = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("part")
    reference = trained(config, data, whole)
    return config, whole, reference, part, trained(config, data, part, a_tenth(reference))


Both = tuple[TrainConfig, Path, TrainReport, Path, TrainReport]


def test_losses_scores_and_commits_are_the_same(both: Both) -> None:
    config, _, reference, part, report = both
    assert [entry.loss for entry in report.epochs] == [entry.loss for entry in reference.epochs]
    assert (report.auc, report.log_loss) == (reference.auc, reference.log_loss)
    assert restored(config, report.checkpoint) == restored(config, reference.checkpoint)
    for mine, other in zip(report.tables, reference.tables, strict=True):
        assert (mine.rows, mine.waiting) == (other.rows, other.waiting)
    saved = figures(report)
    assert saved.memory_bytes <= saved.dram_bytes + 2 * (200 << 10)
    assert saved.rows_on_ssd > 5 * saved.rows_in_dram
    assert saved.rows_in_dram + saved.rows_on_ssd == sum(table.rows for table in reference.tables)
    assert saved.ahead > 0.9
    assert not list((part / "run" / "rows").glob("rows-*"))
    assert json.loads((part / "run" / "report.json").read_text())["memory"]["rows_on_ssd"] == saved.rows_on_ssd


def test_every_published_byte_is_the_same(both: Both) -> None:
    config, whole, _, part, _ = both
    wanted, got = snapshots(whole / "models"), snapshots(part / "models")
    assert list(got.values()) == list(wanted.values())
    assert len(got) > 4
    check_published(part, config)
    # Rows, ids that were removed, requests and their scores, file by file.
    for folder in sorted((whole / "models").rglob("manifest.json")):
        files = [
            {entry["path"]: entry["sha256"] for entry in json.loads(path.read_text())["files"]}
            for path in (folder, part / folder.relative_to(whole))
        ]
        assert files[0] == files[1]
        assert any(name.startswith("tables/") for name in files[0])


def test_an_update_from_less_memory_than_the_training_had_is_the_same(both: Both, data: Path, tmp_path: Path) -> None:
    config, whole, _, part, report = both
    reports = {}
    for name, start, dram_bytes in (("all", whole, None), ("less", part, figures(report).dram_bytes * 3 // 4)):
        shutil.copytree(start, tmp_path / name)
        reports[name] = update(
            tmp_path / name / "run",
            data / "newer.parquet",
            repository=tmp_path / name / "models",
            valid=data / "valid.parquet",
            publish=PublishConfig(delta_every_steps=20, version_every_deltas=0, version_at_share=0.0, keep_deltas=64),
            progress=False,
            dram_bytes=dram_bytes,
        )
    assert reports["less"].log_loss_after == reports["all"].log_loss_after
    found = [snapshots(tmp_path / name / "models") for name in ("less", "all")]
    assert list(found[0].values()) == list(found[1].values())
    mine, other = restored(config, reports["less"].checkpoint), restored(config, reports["all"].checkpoint)
    assert mine[1] == other[1]
    assert (tmp_path / "less" / "models" / "clicks" / "1").is_dir()
    assert list_deltas(tmp_path / "less" / "models" / "clicks" / "1")


def test_a_trained_model_is_read_and_published_within_the_bound(both: Both, data: Path, tmp_path: Path) -> None:
    _, whole, _, part, _ = both
    mine, other = load_trained(part / "run"), load_trained(whole / "run")
    assert sum(table.rows_on_ssd() for table in mine.tables.values()) > 0
    before = [table.rows_on_ssd() for table in mine.tables.values()]
    assert np.array_equal(mine.predict(data / "newer.parquet"), other.predict(data / "newer.parquet"))
    assert before == [table.rows_on_ssd() for table in mine.tables.values()]
    for name, table in mine.tables.items():
        pairs = zip(
            map(np.asarray, table.export_rows()), map(np.asarray, other.tables[name].export_rows()), strict=True
        )
        assert all(np.array_equal(one, two) for one, two in pairs)


def test_a_budget_below_one_batch_is_refused_before_anything_is_trained(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dram_bytes: table '\w+' may take .* one batch has \d+ ids") as refused:
        trained(config_of("dlrm", "adagrad"), data, tmp_path, 4000)
    assert refused.value.field == "training.dram_bytes"


def test_a_run_may_go_on_with_another_bound(data: Path, tmp_path: Path) -> None:
    config = config_of("din", "adagrad")
    one = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 1})})
    options: dict[str, Any] = {"valid": data / "valid.parquet", "progress": False}
    clicks = data / "clicks.parquet"
    first = train(one, clicks, output=tmp_path / "run", **options)
    second = train(config, clicks, output=tmp_path / "run", resume=True, dram_bytes=a_tenth(first), **options)
    whole = train(config, clicks, output=tmp_path / "whole", **options)
    assert second.epochs == whole.epochs
    assert restored(config, second.checkpoint) == restored(config, whole.checkpoint)
    assert figures(second).rows_on_ssd > 0


def test_a_stream_that_is_followed_with_less_memory_leads_to_the_same(both: Both, data: Path, tmp_path: Path) -> None:
    config, whole, _, part, report = both
    (tmp_path / "stream").mkdir()
    shutil.copy(data / "newer.parquet", tmp_path / "stream")
    reports = {}
    for name, start, dram_bytes in (("all", whole, None), ("less", part, figures(report).dram_bytes * 3 // 4)):
        shutil.copytree(start, tmp_path / name)
        reports[name] = follow(
            tmp_path / name / "run",
            tmp_path / "stream",
            repository=tmp_path / name / "models",
            until_idle=0.0,
            publish=PublishConfig(delta_every_steps=20, version_every_deltas=0, version_at_share=0.0),
            progress=False,
            dram_bytes=dram_bytes,
        )
    memory = reports["less"].memory
    assert memory is not None
    assert memory.rows_on_ssd > memory.rows_in_dram
    assert restored(config, reports["less"].checkpoint)[1] == restored(config, reports["all"].checkpoint)[1]
