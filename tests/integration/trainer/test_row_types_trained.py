"""Publishing in every row type: golden scores over the rows as stored, deltas that keep the types, runs that go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from emberline.cli.inspect import command as inspect_command
from emberline.cli.publish import command as publish_command
from emberline.cli.train import command as train_command
from storage.checkpoint import open_delta, open_version
from storage.errors import ConfigError, Unsupported
from storage.specs import ROW_TYPES
from tests.integration.trainer.published_line import CHAIN, SPEC, Training, columns, some_rows
from tests.integration.trainer.test_publish import Ctr, ctr_sample, replay
from trainer import load_trained, publish, train, update
from trainer.config import TrainConfig, with_row_types
from trainer.publishing import Publisher


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_golden_requests_are_scored_over_the_rows_as_stored(row_type: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Ctr()
    version = replay(publish(module, ctr_sample(), tmp_path, name="ctr", row_types=row_type))
    assert {table.row_type for table in version.tables} == {row_type}
    exact = replay(publish(module, ctr_sample(), tmp_path, name="ctr"))
    difference = np.abs(version.golden().outputs["score"] - exact.golden().outputs["score"]).max()
    rounding: Any = version.manifest.metadata.get("rounding", {})
    if row_type == "fp32":
        assert difference == 0.0
        assert rounding == {}
    else:
        assert difference > version.manifest.golden.tolerance, "rounding was not seen: the scores prove nothing"
        assert set(rounding) == {table.name for table in version.tables}
        assert all(0 < entry["mean_error"] < entry["largest_error"] for entry in rounding.values())


def test_tables_of_one_version_may_differ(tmp_path: Path) -> None:
    torch.manual_seed(0)
    asked = {"default": "bf16", "users": "int8", "tags": "fp32"}
    version = replay(publish(Ctr(), ctr_sample(), tmp_path, name="ctr", row_types=asked))
    assert {table.name: table.row_type for table in version.tables} == {
        "users": "int8",
        "tags": "fp32",
        "items": "bf16",
    }
    with pytest.raises(ConfigError, match="there is no table 'itemz'; did you mean 'items'"):
        publish(Ctr(), ctr_sample(), tmp_path, name="ctr", row_types={"itemz": "int8"})


def published(training: Training, models: Path, **options: Any) -> Publisher:
    return Publisher(training.model, columns(some_rows(64, 5)), models, name="m", spec=SPEC, policy=CHAIN, **options)


def trained() -> Training:
    training = Training()
    for seed in range(6):
        training.step(some_rows(64, seed))
    return training


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_a_delta_has_the_rows_of_its_version_rounded_alike(row_type: str, tmp_path: Path) -> None:
    training = trained()
    publisher = published(training, tmp_path, row_types={"default": row_type, "words": "fp16"})
    base = open_version(publisher.publish())
    training.step(some_rows(16, 40))
    delta = open_delta(publisher.publish("delta"))
    assert {table.name: table.row_type for table in delta.tables} == {
        table.name: table.row_type for table in base.tables
    }
    for table in delta.tables:
        live = training.model.tables[table.name]
        for shard in delta.shards(table.name):
            rows = live.lookup(shard.ids, train=False)
            np.testing.assert_array_equal(shard.encoded, shard.codec.encode(rows))
    rounding: Any = delta.manifest.metadata["rounding"]
    assert "words" in rounding
    assert ("users" in rounding) == (row_type != "fp32")


@pytest.mark.slow
@pytest.mark.long
def test_a_delta_of_another_row_type_is_refused_and_auto_makes_a_version(tmp_path: Path) -> None:
    training = trained()
    first = published(training, tmp_path, row_types="int8")
    first.publish()
    training.step(some_rows(16, 40))
    again = published(training, tmp_path, lineage=first.lineage)
    assert open_delta(again.publish("auto")).tables[0].row_type == "int8"
    other = published(training, tmp_path, row_types={"users": "bf16"}, lineage=again.lineage)
    words = r"table 'users': its rows are to be bf16, those of .* are int8, and a delta cannot .*publish a version"
    with pytest.raises(Unsupported, match=words):
        other.publish("delta")
    version = open_version(other.publish("auto"))
    assert {table.name: table.row_type for table in version.tables} == {
        "users": "bf16",
        "tags": "int8",
        "words": "int8",
    }
    assert version.manifest.equals is None, "the rows are not stored as those of the snapshot before"
    silent = published(training, tmp_path, lineage=other.lineage)
    same = open_version(silent.publish("version"))
    assert same.manifest.equals == version.snapshot
    assert [table.row_type for table in same.tables] == [table.row_type for table in version.tables]


def test_an_unknown_table_is_refused_before_anything_is_promised(tmp_path: Path) -> None:
    publisher = published(trained(), tmp_path, row_types={"user": "int8"})
    with pytest.raises(ConfigError, match="there is no table 'user'; did you mean 'users'"):
        publisher.prepare()
    assert publisher.lineage.pending is None


def run_command(command: click.Command, *arguments: object) -> str:
    done = CliRunner(env={"COLUMNS": "300"}).invoke(
        command, [str(entry) for entry in arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
@pytest.mark.long
def test_a_run_is_published_in_row_types_by_command(
    clicks: Path, fresh_clicks: Path, config_of: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    run, models = tmp_path / "run", tmp_path / "models"
    config = tmp_path / "config.yaml"
    config.write_text(config_of("deepfm", epochs="1").model_dump_json())
    arguments = [config, "--data", clicks, "--output", run, "--limit", 1500, "--quiet"]
    shown = run_command(train_command, *arguments, "--repository", models, "--row-type", "bf16")
    assert "table users: rows as bf16" in shown
    version = open_version(models / "clicks" / "1")
    assert {table.row_type for table in version.tables} == {"bf16"}
    report = update(run, fresh_clicks, repository=models, progress=False)
    assert {table.row_type for table in open_delta(report.published[-1]).tables} == {"bf16"}
    publish_arguments = [run, "--repository", models, "--quiet"]
    with pytest.raises(Unsupported, match="a delta cannot change that"):
        run_command(publish_command, *publish_arguments, "--delta", "--row-type", "int8")
    shown = run_command(publish_command, *publish_arguments, "--row-type", "int8", "--row-type", "users=fp16")
    assert "rounding error at most" in shown
    folder = Path(shown.splitlines()[-1].removeprefix("published "))
    types = {table.name: table.row_type for table in open_version(folder).tables}
    assert types.pop("users") == "fp16"
    assert set(types.values()) == {"int8"}
    seen = run_command(inspect_command, folder)
    for text in ("row type", "saved", "int8", "fp16", "rounding error at most", "MiB ("):
        assert text in seen
    seen = run_command(inspect_command, report.published[-1])
    assert "bf16" in seen


@pytest.mark.slow
@pytest.mark.long
def test_training_is_the_same_whatever_is_published(
    clicks: Path, config_of: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    plain = config_of("deepfm", epochs="1")
    scores: list[np.ndarray] = []
    for name, config in (("plain", plain), ("rounded", with_row_types(plain, {"default": "int8"}))):
        train(config, clicks, output=tmp_path / name, repository=tmp_path / "models", limit=600, progress=False)
        scores.append(load_trained(tmp_path / name).predict(clicks))
    np.testing.assert_array_equal(scores[0], scores[1])
