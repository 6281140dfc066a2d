"""Updates of what people do to runs and repositories: what cannot go on says why, what goes on publishes the truth."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.update import command as update_command
from storage import open_version
from storage.checkpoint import list_deltas, open_delta
from storage.errors import CheckpointError, ConfigError, Unsupported
from tests.integration.trainer.update_runs import POLICY, check_published, ctrl_c_at, snapshots, updated
from trainer import load_trained, train
from trainer.config import PublishConfig, TrainConfig
from trainer.publishing import Publisher
from trainer.trained import save_config, save_sample

ClickTable = Callable[[int, int], pa.Table]


def edit_config(place: Path, *path: str | int, value: object) -> None:
    """Changes one entry of the configuration in the run's folder."""
    file = place / "run" / "config.json"
    content = json.loads(file.read_text())
    inner = content
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    file.write_text(json.dumps(content))


def other_items(table: pa.Table, prefix: str) -> pa.Table:
    """Replaces the items of the rows by items that the training has not seen."""
    codes = [prefix + code for code in table.column("item_code").to_pylist()]
    histories = [row and [prefix + code for code in row] for row in table.column("history").to_pylist()]
    table = table.set_column(table.schema.get_field_index("item_code"), "item_code", pa.array(codes))
    place = table.schema.get_field_index("history")
    return table.set_column(place, "history", pa.array(histories, pa.list_(pa.string())))


@pytest.fixture
def aging(place: Path, config: TrainConfig) -> TrainConfig:
    """The run in `place` forgets what the last publish did not hold, and every second delta becomes a version."""
    tables = tuple(table.model_copy(update={"expire_after_publishes": 1}) for table in config.tables)
    policy = PublishConfig(delta_every_steps=3, version_every_deltas=2, version_at_share=0.0, keep_states=32)
    aging = config.model_copy(update={"publish": policy, "tables": tables})
    save_config(place / "run", aging)
    return aging


@pytest.mark.slow
def test_versions_follow_when_none_of_the_first_items_is_left(
    place: Path, aging: TrainConfig, click_table: ClickTable, tmp_path: Path
) -> None:
    pq.write_table(other_items(click_table(1000, 21), "new-"), tmp_path / "newer.parquet")
    report = updated(place, tmp_path / "newer.parquet")
    assert sum(folder.parent.name == "clicks" for folder in report.published) >= 1
    check_published(place, aging)
    load_trained(place / "run").publish(place / "models")
    check_published(place, aging)


def test_a_version_half_published_is_made_after_a_crash_when_the_first_items_are_gone(
    place: Path, aging: TrainConfig, click_table: ClickTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "newer.parquet"
    pq.write_table(other_items(click_table(1000, 21), "new-"), data)

    def crash(publisher: Publisher) -> Path:
        assert publisher.lineage.pending is not None
        if publisher.lineage.pending.compaction:
            raise MemoryError
        return real(publisher)

    real = Publisher.write
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "write", crash)
        with pytest.raises(MemoryError):
            updated(place, data)
    report = updated(place, data, resume=True)
    # Both halves of what was pending: the delta, and the version of its content.
    assert [folder.parent.name for folder in report.published[:2]] == ["deltas", "clicks"]
    check_published(place, aging)


def test_changed_features_are_published_as_a_version_and_never_as_a_delta(place: Path, newer: Path) -> None:
    edit_config(place, "features", 1, "transforms", 0, "seed", value=6)
    with pytest.raises(Unsupported, match="inputs and features are not those"):
        load_trained(place / "run").publish(place / "models", kind="delta")
    report = updated(place, newer)
    assert report.published[0].name == "2"
    assert list_deltas(place / "models" / "clicks" / "1") == []
    assert open_version(report.published[0]).spec == load_trained(place / "run").config.spec
    assert open_delta(report.published[-1]).version == 2


@pytest.mark.slow
def test_a_repository_that_was_deleted_begins_anew(
    place: Path, newer: Path, fresh_clicks: Path, config: TrainConfig
) -> None:
    updated(place, newer)
    shutil.rmtree(place / "models")
    report = updated(place, fresh_clicks)
    assert report.published[0].name == "1"
    load_trained(place / "run").publish(place / "models", kind="cumulative")
    check_published(place, config)
    lying = snapshots(place / "models")
    for sequence in list_deltas(report.published[0]):
        delta = open_delta(report.published[0] / "deltas" / f"{sequence:06d}")
        assert set(delta.applies_to) <= set(lying)
        assert delta.base == open_version(report.published[0]).snapshot
    updated(place, newer, from_snapshot="1.1")
    check_published(place, config)


def test_what_is_published_by_hand_after_going_back_is_continued(
    place: Path, newer: Path, fresh_clicks: Path, config: TrainConfig
) -> None:
    updated(place, newer)
    with ctrl_c_at(3):
        updated(place, fresh_clicks, from_snapshot="1.1")
    by_hand = open_delta(load_trained(place / "run").publish(place / "models", kind="delta"))
    report = updated(place, fresh_clicks, from_snapshot="1.1", resume=True)
    assert by_hand.snapshot in open_delta(report.published[0]).applies_to
    check_published(place, config)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("sparse", {"type": "sgd"}, "table 'users' was trained by adagrad, not by sgd"),
        ("sparse", {"type": "momentum"}, "table 'users' was trained by adagrad, not by momentum"),
        ("dense", {"type": "Adagrad"}, "another dense optimizer than Adagrad"),
        ("dense", {"type": "SGD"}, "another dense optimizer than SGD"),
    ],
)
def test_another_optimizer_cannot_go_on(
    place: Path, newer: Path, kind: str, value: dict[str, str], message: str
) -> None:
    edit_config(place, "optimizer", kind, value=value)
    with pytest.raises(CheckpointError, match=message):
        updated(place, newer)


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "AdamW"])
def test_each_dense_optimizer_goes_on(
    clicks: Path, newer: Path, config: TrainConfig, tmp_path: Path, kind: str
) -> None:
    optimizer = {"dense": {"type": kind}, "sparse": {"type": "sgd"}}
    content = {**config.model_dump(mode="json"), "optimizer": optimizer}
    train(TrainConfig.model_validate(content), clicks, output=tmp_path / "run", limit=500, progress=False)
    with ctrl_c_at(2):
        updated(tmp_path, newer, publish=POLICY.model_copy(update={"delta_every_steps": 0}))
    load_trained(tmp_path / "run")


def test_files_that_are_not_ours_are_named(place: Path, newer: Path) -> None:
    newest = max((place / "run" / "checkpoints").glob("commit-*"))
    copy = newest.with_name("commit-000000900")
    shutil.copytree(newest, copy)
    with pytest.raises(CheckpointError, match="commit-000000900: is a copy of the commit"):
        updated(place, newer)
    (copy / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json: cannot be read .*; remove .*commit-000000900"):
        updated(place, newer)
    shutil.rmtree(copy)
    (place / "run" / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        updated(place, newer)


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """Simulates a disk on which files cannot grow past `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_run_as_it_was(place: Path, newer: Path, config: TrainConfig) -> None:
    run = place / "run"
    before = {name: (run / name).read_bytes() for name in ("config.json", "sample.safetensors")}
    trained = load_trained(run)
    with files_no_longer_than(100), pytest.raises(CheckpointError, match="could not be written"):
        save_config(run, config)
    with files_no_longer_than(100), pytest.raises(CheckpointError, match="could not be written"):
        save_sample(run, trained.sample)
    with files_no_longer_than(2000), pytest.raises(CheckpointError):
        updated(place, newer)
    assert before == {name: (run / name).read_bytes() for name in before}
    assert not list(run.glob(".*.new"))
    updated(place, newer, resume=True)
    check_published(place, config)


def test_seconds_that_are_no_number_are_refused(place: Path, newer: Path) -> None:
    arguments = [str(place / "run"), "--data", str(newer), "--repository", str(place / "models")]
    done = CliRunner().invoke(update_command, [*arguments, "--every-seconds", "nan"])
    assert done.exit_code == 2
    assert "expected a number, got nan" in done.output
