"""Updates over newer rows: every published snapshot is a commit, whatever happened, and going on is to the bit."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from emberline.cli.update import command as update_command
from storage import open_version
from storage.checkpoint import list_deltas, open_delta
from storage.errors import ConfigError, NotFound
from trainer import TrainReport, UpdateReport, load_trained, train, update
from trainer.checkpoint import CommitLog, checkpoints, load_checkpoint, read_commit, read_state
from trainer.config import PublishConfig, TrainConfig
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer

Make = Callable[..., TrainConfig]
# Of a table: id -> bytes of its row. Of a model: table -> rows, and "dense" -> name -> bytes.
Content = dict[str, dict[object, bytes]]

NEWER_ROWS = 1600
POLICY = PublishConfig(
    delta_every_steps=4, cumulative_every=3, version_every_deltas=0, version_at_share=0.0, keep_states=32
)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory, click_table: Callable[[int, int], pa.Table]) -> Path:
    """Rows that came after training, the first of them by users that nobody has seen, who do not come again."""
    table = click_table(NEWER_ROWS, 9)
    users = table.column("user").to_numpy().copy()
    users[:400:5] += 1_000_000
    path = tmp_path_factory.mktemp("newer") / "newer.parquet"
    pq.write_table(table.set_column(0, "user", pa.array(users)), path, row_group_size=400)
    return path


@pytest.fixture(scope="module")
def config(clicks_config: Make) -> TrainConfig:
    """One epoch; a user's row leaves at the second publish without a click of theirs."""
    plain = clicks_config(epochs="1", batch_size="128", checkpoint_every_steps="3")
    tables = tuple(
        table.model_copy(update={"expire_after_publishes": 2}) if table.name == "users" else table
        for table in plain.tables
    )
    return plain.model_copy(update={"publish": POLICY, "tables": tables})


@pytest.fixture(scope="module")
def finished(clicks: Path, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, a finished training, and `models`, into which it was published."""
    folder = tmp_path_factory.mktemp("finished")
    plain = config.model_copy(update={"publish": PublishConfig(keep_states=32)})
    train(plain, clicks, output=folder / "run", repository=folder / "models", limit=2000, progress=False)
    (folder / "run" / "config.json").write_text(config.model_dump_json())
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished training to go on from."""
    shutil.copytree(finished, tmp_path / "place")
    return tmp_path / "place"


def updated(place: Path, newer: Path, **options: object) -> UpdateReport:
    return update(place / "run", newer, repository=place / "models", progress=False, **options)  # type: ignore[arg-type]


def snapshots(models: Path) -> dict[str, Content]:
    """Every snapshot of the repository by its id: each version, and each delta applied to what it applies to."""
    found: dict[str, Content] = {}
    for folder in sorted((models / "clicks").glob("[0-9]*"), key=lambda path: int(path.name)):
        version = open_version(folder)
        content: Content = {
            entry.name: {
                int(number): row.tobytes()
                for shard in version.shards(entry.name)
                for number, row in zip(shard.ids, shard.rows, strict=True)
            }
            for entry in version.manifest.tables
        }
        content["dense"] = weights(version.graph().weights())
        found[version.manifest.snapshot] = content
        for sequence in list_deltas(folder):
            delta = open_delta(folder / "deltas" / f"{sequence:06d}")
            results = []
            for snapshot in delta.applies_to:
                tables = {name: dict(rows) for name, rows in found[snapshot].items()}
                for spec in delta.tables:
                    for gone in delta.removed(spec.name).tolist():
                        tables[spec.name].pop(gone, None)
                    for shard in delta.shards(spec.name):
                        tables[spec.name].update(
                            zip(shard.ids.tolist(), map(np.ndarray.tobytes, shard.rows), strict=True)
                        )
                tables["dense"] = weights(delta.weights())
                results.append(tables)
            assert all(result == results[0] for result in results), f"{delta.path}: depends on what it is applied to"
            found[delta.snapshot] = results[0]
    return found


def weights(tensors: dict[str, torch.Tensor]) -> dict[object, bytes]:
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in tensors.items()}


def restored(config: TrainConfig, folder: Path) -> tuple[dict[str, object], Content]:
    """All that a commit leads to but times and what counts commits; and its tables as servers would see them."""
    tables = build_tables(config)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, tables)
        optimizer = dense_optimizer(config.optimizer.dense, model)
        state = load_checkpoint(folder, model, tables, optimizer)
        found: dict[str, object] = {"random": torch.get_rng_state().tolist()}
    found["position"] = replace(state.position, seconds=0.0)
    found["update"] = state.update and replace(state.update, start_seconds=0.0, origin="", rebase="")
    found["model"] = {name: value.tolist() for name, value in model.state_dict().items()}
    found["optimizer"] = str(optimizer.state_dict())
    content: Content = {}
    for name, table in tables.items():
        ids, rows, slots, counts, _ = table.export_rows()
        content[name] = {int(number): row.tobytes() for number, row in zip(ids, rows, strict=True)}
        found[name] = [
            ids.tobytes(),
            rows.tobytes(),
            slots.tobytes(),
            counts.tobytes(),
            *map(bytes, table.export_counts()),
        ]
    return found, content


def check_published(place: Path, config: TrainConfig) -> list[str]:
    """Every snapshot that lies in the repository is, bit for bit, a commit. Returns their ids, oldest first."""
    lying = snapshots(place / "models")
    commits = {
        snapshot: folder for folder in checkpoints(place / "run") for snapshot in read_commit(folder).state.snapshots
    }
    for snapshot, content in lying.items():
        assert snapshot in commits, f"{snapshot} was published and is no commit"
        _, committed = restored(config, commits[snapshot])
        assert {name: rows for name, rows in content.items() if name != "dense"} == committed
        model_bytes = {
            value.numpy().tobytes() for value in _state_dict(config, commits[snapshot]).values() if value.numel() > 1
        }
        assert model_bytes <= set(content["dense"].values())
    return list(lying)


def _state_dict(config: TrainConfig, folder: Path) -> dict[str, torch.Tensor]:
    tables = build_tables(config)
    model = build_model(config, tables)
    load_checkpoint(folder, model, tables)
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}


def newest(place: Path) -> Path:
    return checkpoints(place / "run")[-1]


def pending(place: Path) -> object:
    publishing = read_state(newest(place)).publishing
    assert publishing is not None
    return publishing["pending"]


@pytest.fixture(scope="module")
def whole(
    finished: Path, newer: Path, fresh_clicks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, UpdateReport]:
    """An update that nothing interrupted."""
    place = tmp_path_factory.mktemp("whole") / "place"
    shutil.copytree(finished, place)
    return place, updated(place, newer, valid=fresh_clicks)


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


CHILD = """
import os, signal, sys
from trainer import train, update
from trainer.checkpoint import CommitLog
from trainer.loop import TrainingLoop
from trainer.publishing import Publisher

place, newer, step, times = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
arguments = sys.argv[5:]
left = [times]

def reached(name):
    if name == step:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def around(owner, method, before, after):
    real = getattr(owner, method)
    def wrapped(self, *args, **options):
        reached(before)
        result = real(self, *args, **options)
        reached(after)
        return result
    setattr(owner, method, wrapped)

around(Publisher, "prepare", "prepare", "prepared")
around(CommitLog, "_write", "", "saving")
around(CommitLog, "save", "", "saved")
around(Publisher, "write", "write", "written")
around(TrainingLoop, "settle", "", "settled")
where = {"repository": place + "/models", "progress": False}
if arguments and arguments[0].endswith(".yaml"):
    train(arguments[0], newer, output=place + "/run", limit=3000, resume=os.path.exists(place + "/run"), **where)
else:
    update(place + "/run", newer, resume=True, from_snapshot=arguments[0] if arguments else None, **where)
"""


def killed(place: Path, data: Path, step: str, times: int, *more: str) -> None:
    """A child goes on with an update, or with a training when a configuration is given, and dies at a step of it."""
    command = [sys.executable, "-c", CHILD, str(place), str(data), step, str(times), *more]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=root)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(
    ("step", "times"),
    # Commits 2, 4, 6 and 7 of the update carry a snapshot, the last of them with the update done; 8 settles it.
    [
        ("prepare", 2),
        ("prepared", 1),
        ("prepared", 4),
        ("saving", 4),
        ("saved", 2),
        ("saved", 5),
        ("saved", 7),
        ("write", 3),
        ("written", 1),
        ("written", 4),
        ("settled", 1),
    ],
)
def test_after_a_kill_at_any_step_the_update_goes_on_to_the_bit(
    place: Path, newer: Path, whole: tuple[Path, UpdateReport], config: TrainConfig, step: str, times: int
) -> None:
    killed(place, newer, step, times)
    before = check_published(place, config)
    report = updated(place, newer, resume=True)
    after = check_published(place, config)
    assert after[: len(before)] == before
    expected, tables = restored(config, whole[1].checkpoint)
    found, content = restored(config, report.checkpoint)
    for state in (expected, found):
        assert state["update"] is not None
        state["update"] = replace(state["update"], auc_before=None, log_loss_before=None)  # type: ignore[type-var]
    assert found == expected
    assert content == tables
    wanted, got = snapshots(whole[0] / "models"), snapshots(place / "models")
    assert list(got.values()) == list(wanted.values())
    assert pending(place) is None


def test_two_kills_in_a_row_and_a_ctrl_c_change_nothing(
    place: Path, newer: Path, whole: tuple[Path, UpdateReport], config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(place, newer, "saved", 2)
    killed(place, newer, "write", 1)
    real = TrainingLoop._step

    def stepping(loop: TrainingLoop, batch: object) -> float:
        if loop.position.batch + 1 == 8:  # a delta is due at it
            signal.raise_signal(signal.SIGINT)
        return real(loop, batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "_step", stepping)
        with pytest.raises(KeyboardInterrupt):
            updated(place, newer, resume=True)
    updated(place, newer, resume=True)
    check_published(place, config)
    assert list(snapshots(place / "models").values()) == list(snapshots(whole[0] / "models").values())


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


@pytest.mark.parametrize("step", ["saved", "prepared", "write"])
def test_going_back_survives_a_kill(
    place: Path, newer: Path, fresh_clicks: Path, config: TrainConfig, step: str
) -> None:
    first = updated(place, newer)
    killed(place, fresh_clicks, step, 1, "1.1")
    report = updated(place, fresh_clicks, resume=True, from_snapshot="1.1")
    parents = [open_delta(folder).parent for folder in report.published]
    assert open_delta(first.published[0]).snapshot in parents
    check_published(place, config)


def test_an_update_that_cannot_begin_says_why(
    place: Path, newer: Path, fresh_clicks: Path, clicks: Path, config: TrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="holds no trained model"):
        update(tmp_path / "nothing", newer, repository=tmp_path, progress=False)
    killed(place, newer, "saved", 2)
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


@pytest.mark.parametrize(("step", "times"), [("prepared", 2), ("saved", 3), ("write", 2), ("written", 3)])
def test_training_that_publishes_goes_on_after_a_kill(
    clicks: Path, config: TrainConfig, tmp_path: Path, step: str, times: int
) -> None:
    policy = POLICY.model_copy(update={"delta_every_steps": 8})
    config = config.model_copy(update={"publish": policy})
    path = tmp_path / "config.yaml"
    path.write_text(config.model_dump_json())
    whole = tmp_path / "whole"
    options = {"limit": 3000, "progress": False}
    wanted = train(config, clicks, output=whole / "run", repository=whole / "models", **options)  # type: ignore[arg-type]
    killed(tmp_path, clicks, step, times, str(path))
    if step == "write":
        with pytest.raises(ConfigError, match="half published"):
            train(config, clicks, output=tmp_path / "run", resume=True, **options)  # type: ignore[arg-type]
    got = train(
        config,
        clicks,
        output=tmp_path / "run",
        repository=tmp_path / "models",
        resume=True,
        **options,  # type: ignore[arg-type]
    )
    assert restored(config, got.checkpoint) == restored(config, wanted.checkpoint)
    check_published(tmp_path, config)
    assert list(snapshots(tmp_path / "models").values()) == list(snapshots(whole / "models").values())


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
