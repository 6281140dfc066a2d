"""Ids are forgotten in a run and its repository: which files had them, what is left, and what is refused."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.forget import command
from emberline.cli.forget_report import ForgetReport
from serving.scoring import Scorer
from storage import open_version
from storage.checkpoint.as_of import find_as_of
from storage.errors import ConfigError, InvalidInput
from storage.forgetting import Needles, Place, Wanted, find_places, wanted_values
from tests.integration.trainer.follow_runs import followed
from tests.integration.trainer.published_line import CHAIN, SPEC, Training, columns, some_rows
from tests.integration.trainer.test_follow_joined import as_files, split, with_join
from tests.integration.trainer.update_runs import restored, snapshots, updated
from trainer import UpdateReport, load_trained, update
from trainer.checkpoint import CommitLog, checkpoints, read_commit
from trainer.config import TrainConfig
from trainer.forgetting import check_tables, forget
from trainer.publishing import Publisher

USER = -50_000


def places(place: Path, wanted: Wanted, needles: Needles | None = None) -> list[Place]:
    spec = load_trained(place / "run").config.spec
    return find_places([place / "run", place / "models"], wanted, spec, Needles() if needles is None else needles)


def wanted_of(place: Path, *users: int) -> Wanted:
    return wanted_values(load_trained(place / "run").config.spec, "user", [str(user) for user in users])


def content(place: Path) -> dict[str, Any]:
    """Returns the rows and weights of the newest snapshot of the repository."""
    *_, newest = snapshots(place / "models").values()
    return newest


def test_rows_are_gone_and_all_else_is_as_it_was(updated_place: Path) -> None:
    place = updated_place
    wanted, needles, before = wanted_of(place, USER), Needles(), content(place)
    found_in = {(each.what, each.path.name) for each in places(place, wanted, needles)}
    assert {("requests", "golden.safetensors"), ("requests", "sample.safetensors")} < found_in
    assert ("rows", "users.safetensors") in found_in
    assert len(needles) > 2, "rows of several commits"
    done = forget(load_trained(place / "run"), place / "models", wanted)
    assert done.rows == {"users": 1}
    assert not places(place, wanted, needles)
    del before["users"][USER]
    assert content(place) == before
    assert [path.name for path in (place / "models" / "clicks").iterdir() if path.is_dir()] == ["2"]
    (commit,) = checkpoints(place / "run")
    assert read_commit(commit).state.snapshots == (done.snapshot,)


def test_the_next_deltas_lead_on_from_the_new_version_without_the_ids(place: Path, fresh_clicks: Path) -> None:
    wanted = wanted_of(place, USER)
    forget(load_trained(place / "run"), place / "models", wanted)
    others = pq.read_table(fresh_clicks)
    others = others.filter(np.asarray(others.column("user")) != USER)
    pq.write_table(others, place / "others.parquet")
    report = updated(place, place / "others.parquet")
    assert report.published
    assert all("2" in path.parts for path in report.published)
    assert USER not in content(place)["users"]
    assert not places(place, wanted)
    # Whoever trains on the user's rows again has the row again: the page says so.
    updated(place, fresh_clicks)
    assert USER in content(place)["users"]


def forgetting(place: Path, step: str, times: int) -> None:
    """Forgets, and dies at one of the steps."""
    left = [times]

    def before(owner: type, method: str) -> None:
        real = getattr(owner, method)

        def wrapped(self: object, *args: object, **options: object) -> object:
            if method == step:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *args, **options)

        setattr(owner, method, wrapped)

    for owner, method in (
        (Publisher, "prepare"),
        (CommitLog, "save"),
        (Publisher, "write"),
        (Publisher, "remove_older"),
    ):
        before(owner, method)
    forget(load_trained(place / "run"), place / "models", wanted_of(place, USER))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "times"), [("prepare", 1), ("save", 1), ("write", 1), ("remove_older", 1), ("save", 2)]
)
def test_the_same_call_finishes_one_that_was_killed(
    updated_place: Path, config: TrainConfig, step: str, times: int
) -> None:
    place = updated_place
    wanted, before = wanted_of(place, USER), restored(config, checkpoints(place / "run")[-1])[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch.export", "storage.checkpoint.graph"])
    child = context.Process(target=forgetting, args=(place, step, times))
    child.start()
    child.join(120.0)
    assert child.exitcode == -signal.SIGKILL
    forget(load_trained(place / "run"), place / "models", wanted)
    assert not places(place, wanted)
    del before["users"][USER]
    assert restored(config, checkpoints(place / "run")[-1])[1] == before
    assert {name: rows for name, rows in content(place).items() if name != "dense"} == before


def waiting_rows(report: UpdateReport) -> int:
    assert report.followed is not None
    return report.followed.joined["waiting_rows"]


@pytest.mark.slow
def test_events_that_wait_for_their_label_go_too(place: Path, config: TrainConfig, newer: Path) -> None:
    with_join(place, config)
    rows, labels = split(newer)
    users = rows.column("user").to_numpy()
    with as_files(place, rows, labels) as (views, clicks):
        report = followed(place, views, labels=clicks)
        assert waiting_rows(report) == 1, "the last row waits for the end of its window"
        user = int(users[-1])
        wanted, needles = wanted_of(place, user), Needles()
        assert places(place, wanted, needles)
        done = forget(load_trained(place / "run"), place / "models", wanted)
        assert done.waiting_rows > 0
        for path in (place / "run" / "join").iterdir():
            assert user.to_bytes(8, "little", signed=True) not in path.read_bytes()
        report = followed(place, views, labels=clicks)
    assert waiting_rows(report) == 0
    assert not places(place, wanted, needles)


def test_tables_whose_rows_ids_share_are_refused(clicks_config: Callable[..., TrainConfig]) -> None:
    config = clicks_config()
    shared = config.model_dump(mode="json")
    shared["tables"][0] = {"name": "users", "dim": 8, "kind": "hashed", "buckets": 100}
    with pytest.raises(ConfigError, match="its kind is hashed, whose rows are not those of one id each"):
        check_tables(TrainConfig.model_validate(shared), Wanted.of_ids({"users": [1]}))
    with pytest.raises(ConfigError, match="table 'user': the model has none of that name; did you mean 'users'"):
        check_tables(config, Wanted.of_ids({"user": [1]}))


def test_raw_values_lead_to_ids_as_in_training(clicks_config: Callable[..., TrainConfig]) -> None:
    spec = clicks_config().spec
    wanted = wanted_values(spec, "item", ["item-41", "item-42"])
    assert set(wanted.tables) == {"items"}
    assert wanted.count == 2
    with pytest.raises(InvalidInput, match="input 'itme' is not one of the model's; did you mean 'item'"):
        wanted_values(spec, "itme", ["item-41"])
    with pytest.raises(InvalidInput, match="value 2, 'x7', is no INT64 of the input 'user'"):
        wanted_values(spec, "user", ["7", "x7"])
    crossed = spec.model_dump(mode="json")
    crossed["features"][0]["transforms"] = [{"op": "hash", "buckets": 10}]
    with pytest.raises(InvalidInput, match="user hashes into 10 buckets, whose rows several values share"):
        wanted_values(type(spec).parse(crossed), "user", ["7"])


def test_the_last_line_of_the_report_agrees_with_the_shared_rows(capsys: pytest.CaptureFixture[str]) -> None:
    ForgetReport({"users": 1}, {"region": "divides it"}).show(as_json=False, dry_run=False)
    ForgetReport({"users": 1}, {}).show(as_json=False, dry_run=False)
    lines = capsys.readouterr().out.splitlines()
    assert "shared rows stay: feature region divides it" in lines
    ends = [line.split(":")[0] for line in lines if line.startswith("nothing is left")]
    assert ends == ["nothing is left but the shared rows named above", "nothing is left"]


def test_a_run_that_trains_is_not_touched(place: Path) -> None:
    trained, wanted = load_trained(place / "run"), wanted_of(place, USER)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != ".lock"}
    with CommitLog(place / "run"), pytest.raises(ConfigError, match="another process trains or publishes this run"):
        forget(trained, place / "models", wanted)
    assert {path: path.read_bytes() for path in before} == before


def test_the_command_says_where_ids_are_and_that_they_are_gone(place: Path) -> None:
    (place / "ids.csv").write_text(f"account,name\n{USER},ann\n,nobody\n{USER},ann\n")
    arguments = [str(place / "run"), "--repository", str(place / "models"), "--ids", str(place / "ids.csv"), "--quiet"]
    done = CliRunner().invoke(command, [*arguments, "--table", "users"])
    assert "has the columns account, name; say which with --column" in str(done.exception)
    arguments += ["--column", "account"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert "give either --table" in done.output
    done = CliRunner().invoke(command, [*arguments, "--table", "users", "--dry-run"])
    assert done.exit_code == 0
    assert "ids to forget: 1 of users" in done.output
    assert "users.safetensors" in re.sub(r"\s", "", done.output)  # long paths go on in the next line
    done = CliRunner().invoke(command, [*arguments, "--input", "user"])
    assert done.exit_code == 0, done.output
    assert "erased rows: 1 of users" in done.output
    assert "in place of all older snapshots" in done.output
    assert "nothing is left: read" in done.output
    done = CliRunner().invoke(command, [*arguments, "--input", "user", "--json"])
    report = json.loads(done.stdout)
    assert (report["done"], report["left"], report["is_clean"]) == (None, [], True)


def test_who_forgets_without_the_run_that_published_is_told_of_it(place: Path) -> None:
    (place / "ids.txt").write_text(f"{USER}\n")
    arguments = ["--repository", str(place / "models"), "--name", "clicks", "--table", "users", "--quiet"]
    done = CliRunner().invoke(command, [*arguments, "--ids", str(place / "ids.txt")])
    assert done.exit_code == 0, done.output
    assert "a training run published clicks: forget the ids in it too" in done.stderr


def test_a_bucket_is_emptied_at_once(place: Path, newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path / 'bucket'}"
    # Another run published there, from another machine.
    shutil.copytree(place / "run", tmp_path / "other")
    load_trained(tmp_path / "other").publish(url)
    shutil.rmtree(tmp_path / "home")
    load_trained(place / "run").publish(url)
    update(place / "run", newer, repository=url, progress=False)
    wanted = wanted_of(place, USER)
    bucket = tmp_path / "bucket" / "clicks"
    (bucket / "hot_ids").write_bytes(b"a list")
    roots, spec = [place / "run", tmp_path / "bucket", tmp_path / "home"], load_trained(place / "run").config.spec
    needles = Needles()
    assert find_places(roots, wanted, spec, needles)
    done = forget(load_trained(place / "run"), url, wanted)
    assert done.published.startswith("file://")
    assert done.version is not None
    assert not find_places(roots, wanted, spec, needles)
    assert not (bucket / "hot_ids").exists()
    left = {path.relative_to(bucket).parts[0] for path in bucket.rglob("*") if path.is_file()}
    assert left - {"head.json.lock"} == {done.version.name, "config.pbtxt", "head.json"}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_model_without_a_run_is_written_anew_from_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "models").mkdir()
    repository = f"{scheme}{tmp_path / 'models'}" if scheme else tmp_path / "models"
    training = Training()
    raw = training.step(some_rows(400, 1))
    gone = some_rows(400, 1)[0][0]
    publisher = Publisher(training.model, raw, repository, name="m", spec=SPEC, policy=CHAIN)
    publisher.publish()
    training.step(some_rows(100, 2))
    publisher.publish()
    rows = [row for row in some_rows(300, 5) if row[0] != gone]
    model = publisher.folder

    def scores(place: str) -> list[np.ndarray[Any, Any]]:
        with Scorer(find_as_of(model), tmp_path / place) as scorer:
            return scorer.score(columns(rows), len(rows))

    before, tables = scores("first"), training.tables()
    assert gone in tables["users"]
    (tmp_path / "ids.txt").write_text(f"{gone}\n")
    arguments = ["--repository", str(repository), "--name", "m", "--table", "users", "--ids", str(tmp_path / "ids.txt")]
    done = CliRunner().invoke(command, [*arguments, "--dry-run", "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)["found"]
    assert {("rows", "users"), ("requests", "")} <= {(each["what"], each["table"]) for each in found}
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert (done.exit_code, report["left"], report["done"]["rows"]) == (0, [], {"users": 1})
    assert [path.name for path in model.iterdir() if path.is_dir()] == ["2"]
    newest = find_as_of(model).version
    assert newest.manifest.erased_unix_ms == newest.manifest.created_unix_ms
    del tables["users"][gone]
    for name, content in tables.items():
        assert {
            i: r.tobytes() for s in newest.shards(name) for i, r in zip(s.ids.tolist(), s.rows, strict=True)
        } == content
    for first, second in zip(before, scores("second"), strict=True):
        assert (first == second).all()
    for path in (tmp_path / "models").rglob("*.safetensors"):
        assert not find_places([path], Wanted.of_ids({"users": [gone]}), SPEC, Needles())


def test_later_versions_say_when_ids_were_forgotten(place: Path) -> None:
    done = forget(load_trained(place / "run"), place / "models", wanted_of(place, USER))
    assert done.version is not None
    erased = open_version(done.version).manifest.erased_unix_ms
    assert erased > 0
    later = load_trained(place / "run").publish(place / "models")
    assert open_version(later).manifest.erased_unix_ms == erased
