"""Updates over newer rows: every published snapshot is a commit, whatever happened, and going on is to the bit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emberline.cli.update import command as update_command
from storage.checkpoint import list_deltas, open_delta
from storage.errors import ConfigError, NotFound
from tests.integration.trainer.update_runs import (
    NEWER_ROWS,
    POLICY,
    check_published,
    ctrl_c_at,
    pending,
    restored,
    updated,
)
from trainer import TrainReport, UpdateReport, load_trained, train, update
from trainer.checkpoint import CommitLog, read_state
from trainer.config import TrainConfig


def test_an_update_publishes_on_the_way_and_every_snapshot_is_a_commit(
    whole: tuple[Path, UpdateReport], config: TrainConfig
) -> None:
    place, report = whole
    assert (report.rows, report.steps, report.number) == (NEWER_ROWS, 13, 1)
    assert [folder.name for folder in report.published] == ["000001", "000002", "000003", "000004"]
    assert len(check_published(place, config)) == 5
    delta = open_delta(report.published[2])
    assert (delta.manifest.from_sequence, len(delta.applies_to)) == (0, 3)  # the third is cumulative
    assert any(len(open_delta(folder).removed("users")) for folder in report.published)
    assert pending(place) is None
    assert json.loads((place / "run" / "update.json").read_text())["steps"] == 13
    assert report.auc_before is not None
    assert report.auc_after is not None
    assert report.auc_after > report.auc_before
    trained = load_trained(place / "run")
    assert trained.tables["users"].size() == len(restored(config, report.checkpoint)[1]["users"])


def test_the_same_call_again_changes_nothing_and_another_update_follows(
    place: Path, newer: Path, fresh_clicks: Path, config: TrainConfig
) -> None:
    first = updated(place, newer)
    again = updated(place, newer, resume=True)
    assert again.published == []
    assert (again.rows, again.steps, again.number) == (first.rows, first.steps, 1)
    second = updated(place, fresh_clicks)
    assert (second.number, second.rows) == (2, 2000)
    assert second.published[0].name == "000005"
    check_published(place, config)


def test_going_back_to_a_snapshot_continues_the_state_it_was_made_from(
    place: Path, newer: Path, fresh_clicks: Path, config: TrainConfig
) -> None:
    first = updated(place, newer)
    gone_back = open_delta(first.published[0])
    before, _ = restored(config, _commit_of(place, gone_back.snapshot))
    report = updated(place, fresh_clicks, from_snapshot="1.1")
    rebased = open_delta(report.published[0])
    assert rebased.parent == gone_back.snapshot
    assert rebased.sequence == 5  # a number is never used again
    assert set(rebased.applies_to) <= {gone_back.snapshot, rebased.base}
    start = read_state(_commit_of(place, rebased.snapshot)).update
    assert start is not None
    assert start.start_step == before["position"].step  # type: ignore[attr-defined]
    check_published(place, config)
    with pytest.raises(NotFound):
        updated(place, newer, from_snapshot=open_delta(first.published[2]).snapshot)
    with pytest.raises(NotFound, match=r"snapshot '9\.9'"):
        updated(place, newer, from_snapshot="9.9")


def _commit_of(place: Path, snapshot: str) -> Path:
    with CommitLog(place / "run") as log:
        return log.find(snapshot).folder


def test_an_update_that_cannot_begin_says_why(
    place: Path, newer: Path, fresh_clicks: Path, clicks: Path, config: TrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="holds no trained model"):
        update(tmp_path / "nothing", newer, repository=tmp_path, progress=False)
    with ctrl_c_at(4):
        updated(place, newer)
    with pytest.raises(ConfigError, match="an update is under way, 4 batches are done"):
        updated(place, newer)
    with pytest.raises(ConfigError, match="an update is under way"):
        updated(place, fresh_clicks, resume=True)
    with pytest.raises(ConfigError, match="updated with newer rows"):
        train(config, clicks, output=place / "run", limit=2000, progress=False, resume=True)
    with CommitLog(place / "run"), pytest.raises(ConfigError, match="another process"):
        updated(place, newer, resume=True)
    longer = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 2})})
    train(config, clicks, output=tmp_path / "short", limit=500, progress=False)
    (tmp_path / "short" / "config.json").write_text(longer.model_dump_json())
    with pytest.raises(ConfigError, match="finish it first"):
        update(tmp_path / "short", newer, repository=tmp_path / "models", progress=False)


def test_a_run_that_was_never_published_begins_with_a_version(
    clicks: Path, newer: Path, config: TrainConfig, tmp_path: Path
) -> None:
    quick = config.model_copy(update={"publish": POLICY.model_copy(update={"delta_every_steps": 0})})
    train(quick, clicks, output=tmp_path / "run", limit=500, progress=False)
    report = update(tmp_path / "run", newer, repository=tmp_path / "models", progress=False)
    assert [folder.relative_to(tmp_path / "models").as_posix() for folder in report.published] == ["clicks/1"]
    check_published(tmp_path, config)


def test_training_publishes_deltas_after_its_first_version(clicks: Path, config: TrainConfig, tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"delta_every_steps": 0, "delta_every_rows": 1024})
    config = config.model_copy(update={"publish": policy})
    report: TrainReport = train(
        config, clicks, output=tmp_path / "run", repository=tmp_path / "models", limit=3000, progress=False
    )
    assert list_deltas(tmp_path / "models" / "clicks" / "1") == [1, 2]  # at 1,024, 2,048 and 3,000 rows
    assert report.published == tmp_path / "models" / "clicks" / "1" / "deltas" / "000002"
    check_published(tmp_path, config)


def test_seconds_are_a_policy_too(place: Path, newer: Path, config: TrainConfig) -> None:
    policy = POLICY.model_copy(update={"delta_every_steps": 0, "delta_every_seconds": 1e-9})
    report = updated(place, newer, publish=policy)
    assert len(report.published) == 13
    check_published(place, config)


@pytest.mark.slow
def test_every_snapshot_is_listed_also_a_delta_that_a_version_follows(
    place: Path, newer: Path, config: TrainConfig
) -> None:
    policy = POLICY.model_copy(update={"version_every_deltas": 2, "cumulative_every": 0, "keep_versions": 9})
    report = updated(place, newer, publish=policy)
    listed = [folder.relative_to(place / "models" / "clicks").as_posix() for folder in report.published]
    assert listed == ["1/deltas/000001", "1/deltas/000002", "2", "2/deltas/000001", "2/deltas/000002", "3"]
    assert len(check_published(place, config)) == 7


def with_config(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = place / "run" / "config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _dim(content: dict[str, Any]) -> None:
    content["tables"][1]["dim"] = 16


def _feature(content: dict[str, Any]) -> None:
    content["features"].append({"name": "cheap", "inputs": ["price"], "output": "dense"})


def _table(content: dict[str, Any]) -> None:
    content["features"].append({"name": "reader", "inputs": ["user"], "output": "ids", "table": "readers"})
    content["tables"].append({"name": "readers", "dim": 8})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_dim, "tables.items.dim was 8 and is 16"),
        (_feature, "features.cheap was added"),
        (_table, "features.reader was added, tables.readers was added"),
    ],
)
def test_another_model_in_the_configuration_of_a_run_is_refused_by_name(
    place: Path, newer: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    with_config(place, change)
    for again in (lambda: updated(place, newer), lambda: load_trained(place / "run")):
        with pytest.raises(ConfigError, match="train the new model into another folder") as caught:
            again()
        assert words in str(caught.value)
        assert "size mismatch" not in str(caught.value)


def _seed(content: dict[str, Any]) -> None:
    content["features"][1]["transforms"][0]["seed"] = 7


def _absent(content: dict[str, Any]) -> None:
    content["features"][0]["absent"] = {"type": "constant", "scale": 0.1}


@pytest.mark.parametrize("change", [_seed, _absent])
def test_with_other_features_the_next_publish_is_a_version(
    place: Path, newer: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    with_config(place, change)
    report = updated(place, newer)
    assert report.published[0] == place / "models" / "clicks" / "2"
    assert report.published[1] == place / "models" / "clicks" / "2" / "deltas" / "000001"


def test_the_command_says_what_it_did(place: Path, newer: Path, fresh_clicks: Path, config: TrainConfig) -> None:
    run, models = str(place / "run"), str(place / "models")
    arguments = [run, "--data", str(newer), "--repository", models, "--quiet"]
    done = CliRunner().invoke(update_command, [*arguments, "--valid", str(fresh_clicks), "--every-rows", "1000"])
    assert done.exit_code == 0, done.output
    assert re.search(r"trained 1,600 rows in .*\nvalidation: AUC 0\.\d{4} -> 0\.\d{4}, log-loss", done.output)
    assert re.findall(r"published .*/clicks/(.*)", done.output) == ["1/deltas/000001", "1/deltas/000002"]
    again = CliRunner().invoke(update_command, [*arguments, "--resume"])
    assert again.exit_code == 0
    assert "published" not in again.output
    back = CliRunner().invoke(update_command, [*arguments, "--at", "1.1", "--every-steps", "100"])
    assert re.findall(r"published .*/clicks/(.*)", back.output) == ["1/deltas/000003"]
    check_published(place, config)


def test_an_update_of_the_same_rows_again_that_ended_before_its_first_commit_is_not_taken_for_done(
    place: Path, newer: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated(place, newer)
    with monkeypatch.context() as patched:
        patched.setattr("trainer.update_run.load_checkpoint", _out_of_memory)
        with pytest.raises(MemoryError):
            updated(place, newer)
    second = updated(place, newer, resume=True)
    assert (second.number, second.rows, second.warnings) == (2, NEWER_ROWS, [])
    again = updated(place, newer, resume=True)
    assert (again.number, again.published) == (2, [])
    assert "update 2 was complete already" in again.warnings[0]
    check_published(place, config)


def test_going_back_twice_to_a_snapshot_is_not_taken_for_done(
    place: Path, newer: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = updated(place, newer)
    updated(place, newer, from_snapshot="1.1")
    with monkeypatch.context() as patched:
        patched.setattr("trainer.update_run.load_checkpoint", _out_of_memory)
        with pytest.raises(MemoryError):
            updated(place, newer, from_snapshot="1.1")
    third = updated(place, newer, from_snapshot="1.1", resume=True)
    assert (third.number, third.rows) == (3, NEWER_ROWS)
    assert open_delta(third.published[0]).parent == open_delta(first.published[0]).snapshot
    check_published(place, config)


def _out_of_memory(*_: object) -> None:
    raise MemoryError
