"""Users are forgotten, end to end: trained, published, updated, served from SSD, and then in no byte of any file.

The commands are those of docs/forget.md.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.forget import command as forget_command
from emberline.cli.server_call import call_server, model_path
from storage import open_version
from storage.checkpoint.as_of import find_as_of
from storage.forgetting import Needles
from storage.forgetting.places import files_under
from storage.tiers.planning.budget import row_cost
from tests.e2e.test_row_types_served import CONFIG, clicks
from tests.e2e.test_storm import set_options
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import train, update
from trainer.config import parse_text

PAGE = (Path(__file__).parents[2] / "docs" / "forget.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
#: Users as services have them: numbers so large that their bytes are found.
FIRST = 7_000_000_000_000_000
GONE = [FIRST + number for number in (3, 11, 42)]


def with_large_users(table: pa.Table) -> pa.Table:
    place = table.schema.get_field_index("user")
    users = pc.add(table.column("user").cast(pa.int64()), FIRST)
    return table.set_column(place, "user", users)


def forget(line: str) -> tuple[int, Any]:
    program, name, *arguments = shlex.split(line)
    assert (program, name) == ("emberline", "forget")
    done = CliRunner().invoke(forget_command, [*arguments, "--json", "--quiet"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def rows_by_id(model: Path, table: str) -> dict[int, bytes]:
    """Returns the rows of the newest snapshot as they are stored."""
    snapshot = find_as_of(model)
    rows: dict[int, bytes] = {}
    parts = [snapshot.version.shards(table), *(delta.shards(table) for delta in snapshot.deltas)]
    for shards in parts:
        for shard in shards:
            rows.update(zip(shard.ids.tolist(), map(np.ndarray.tobytes, shard.encoded), strict=True))
    return rows


def wait_until_served(server: ServerProcess, name: str) -> None:
    deadline = time.monotonic() + 60
    while call_server(server.url, model_path("plain", "snapshots"), 10.0)[0]["served"]["name"] != name:
        assert time.monotonic() < deadline, f"{name} is not served"
        time.sleep(0.05)


def test_forgotten_users_are_in_no_file_and_in_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    look, erase = BLOCKS[0].splitlines()
    data, newer, later = (tmp_path / f"{name}.parquet" for name in ("data", "newer", "later"))
    pq.write_table(with_large_users(clicks(4000, 1)), data)
    pq.write_table(with_large_users(clicks(2000, 2)), newer)
    table = with_large_users(clicks(2000, 3))
    pq.write_table(table.filter(pc.invert(pc.is_in(table.column("user"), pa.array(GONE)))), later)
    run, models, store = (tmp_path / "build" / name for name in ("run", "models", "store"))
    log = tmp_path / "server.log"
    config = parse_text(CONFIG.replace("epochs: 2", "epochs: 1, checkpoint_every_steps: 5"))
    train(config, data, output=run, repository=models, progress=False)
    version = open_version(models / "plain" / "1")
    budget = sum(row_cost(each) * each.rows for each in version.tables) // 10
    set_options(models / "plain", {"dram_bytes": str(budget)})
    (tmp_path / "users.txt").write_text("".join(f"{user}\n" for user in GONE))
    needles = Needles()
    for row in (rows_by_id(models / "plain", "user")[user] for user in GONE):
        needles.add(row, "row")
    with ServerProcess(models, store, log) as server:
        update(run, newer, repository=models, progress=False)
        rows = rows_by_id(models / "plain", "user")
        for user in GONE:
            needles.add(rows[user], "row")
        wait_until_served(server, "1.1")
        requests = requests_of(server.url, "plain", later, 1000)
        before = dict(ask_all(server.url, server.grpc, "plain", requests))

        code, report = forget(f"{look} --search build/store")
        assert code == 0
        found_in = {(Path(each["path"]).name, each["what"]) for each in report["found"]}
        assert {("sample.safetensors", "requests"), ("golden.safetensors", "requests")} <= found_in
        assert any(Path(each["path"]).suffix == ".pages" for each in report["found"]), "the store on SSD has the rows"

        code, report = forget(erase.replace("http://127.0.0.1:8000", server.url))
        assert (code, report["left"]) == (0, []), report
        assert report["done"]["rows"] == {"user": len(GONE)}
        (found,) = report["servers"]
        assert (found["serves"], found["asked"], found["with_row"]) == ("2.0", len(GONE), 0)
        after = dict(ask_all(server.url, server.grpc, "plain", requests))
        assert all((after[way] == before[way]).all() for way in before), "scores of others have changed"

        for user in GONE:
            needles.add_id(user)
        for folder in (run, models, store, log):
            for path in files_under(folder):
                assert not needles.search(path), path
        update(run, later, repository=models, progress=False)
        assert not set(rows_by_id(models / "plain", "user")) & set(GONE)
    for path in files_under(models):
        assert not needles.search(path), path


def test_a_pinned_server_keeps_what_it_serves_until_an_operator_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(with_large_users(clicks(2000, 1)), tmp_path / "data.parquet")
    run, models, store = (tmp_path / "build" / name for name in ("run", "models", "store"))
    train(
        parse_text(CONFIG.replace("epochs: 2", "epochs: 1")),
        tmp_path / "data.parquet",
        output=run,
        repository=models,
        progress=False,
    )
    (tmp_path / "users.txt").write_text("".join(f"{user}\n" for user in GONE))
    with ServerProcess(models, store, tmp_path / "server.log", open_admin=True) as server:
        call_server(server.url, model_path("plain", "pin"), 10.0, {})
        line = "emberline forget build/run --repository build/models --input user --ids users.txt"
        line = f"{line} --url {server.url} --search build/store"
        code, report = forget(f"{line} --within 3")
        assert code == 1
        (found,) = report["servers"]
        assert "it serves 1.0 and has not taken version 2; it is pinned: `emberline resume plain` ends" in found["left"]
        assert report["left"], "its store still has the rows"
        assert all(Path(each["path"]).is_relative_to("build/store") for each in report["left"])
        call_server(server.url, model_path("plain", "resume"), 10.0, {})
        code, report = forget(f"{line} --within 60")
        assert (code, report["done"], report["left"]) == (0, None, [])


def test_the_other_commands_of_the_page_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone.csv").touch()
    for block in BLOCKS[1:]:
        for line in block.splitlines():
            forget_command.make_context("forget", shlex.split(line)[2:])
