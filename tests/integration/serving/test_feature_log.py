"""The log of served requests: who is in it, over every transport, what is left out, and how the disk is bounded."""

from __future__ import annotations

import json
import os
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serving.engine.tap import sample_point
from serving.feedback.log_files import LogFolder
from storage.served_log import keyed_hash
from tests.integration.serving.http_calls import ask as call
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, ask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient.http imports, warns about what it patches
    import tritonclient.grpc as triton_grpc

ALL: dict[str, Any] = {"feature_log_share": 1, "feature_log_every_s": 0.05}
BY_PYTHON = {"TE": "trailers"}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, **ALL) as running:
        running.version()
        yield running


def started(live: Live, **options: Any) -> Live:
    return live.start(feature_log=live.folder / "log", **options)


def log(live: Live) -> dict[str, Any]:
    return dict(live.report()["feature_log"])


def table(live: Live, rows: int) -> Any:
    """Waits until the files hold so many rows, and returns them sorted by request and row."""
    folder = live.folder / "log" / NAME / "requests"
    live.until(lambda: log(live)["written_rows"] >= rows)
    found = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("[!.]*.parquet"))])
    assert found.num_rows == rows, found.column("served_id").to_pylist()
    return found.sort_by([("served_id", "ascending"), ("served_row", "ascending")])


def body(users: list[int], items: list[list[int]], **beside: Any) -> dict[str, Any]:
    rows, longest = len(users), max(map(len, items))
    padded = [[*each, *[0] * (longest - len(each))] for each in items]
    return {
        "inputs": [
            {"name": "user", "shape": [rows, 1], "datatype": "INT64", "data": users},
            {"name": "items", "shape": [rows, longest], "datatype": "INT64", "data": padded},
            {"name": "items.lengths", "shape": [rows, 1], "datatype": "INT64", "data": [len(each) for each in items]},
        ],
        **beside,
    }


def infer(live: Live, content: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
    reply = call(live.server.http_port, "POST", f"/v2/models/{NAME}/infer", content, headers)
    assert reply.status == 200, reply.content
    return dict(reply.json)


@pytest.mark.parametrize("headers", [{}, BY_PYTHON])
def test_requests_over_http_are_logged_as_they_came_with_their_scores(live: Live, headers: dict[str, str]) -> None:
    started(live)
    users, items = [5, 7], [[1, 2, 3], []]
    answers = [infer(live, body(users, items, id="mine"), headers), infer(live, body([9], [[4]]), headers)]
    assert live.server.native is not None
    assert live.server.native.native.answered == (0 if headers else 2)
    assert answers[0]["id"] == "mine"
    made = answers[1]["id"]
    assert len(made) == 32
    found = table(live, 3)
    rows = found.to_pylist()
    assert [(row["served_id"], row["served_row"], row["user"], row["items"]) for row in rows] == sorted(
        [("mine", 0, 5, [1, 2, 3]), ("mine", 1, 7, []), (made, 0, 9, [4])]
    )
    scores = {("mine", row): value for row, value in enumerate(_output(answers[0]))} | {
        (made, 0): _output(answers[1])[0]
    }
    for row in rows:
        assert row["served_score.score"] == pytest.approx(scores[row["served_id"], row["served_row"]])
        assert (row["served_arm"], row["served_snapshot"]) == ("main", "1.0")
        assert abs(row["served_at"].timestamp() - time.time()) < 60
    assert sum(log(live)["dropped"].values()) == 0


def _output(answer: dict[str, Any]) -> list[float]:
    return next(output["data"] for output in answer["outputs"] if output["name"] == "score")


def test_requests_over_grpc_and_v1_are_logged_and_learn_their_ids(live: Live) -> None:
    started(live)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{live.server.grpc_port}") as client:
        inputs = [
            triton_grpc.InferInput("user", [1, 1], "INT64"),
            triton_grpc.InferInput("items", [1, 2], "INT64"),
            triton_grpc.InferInput("items.lengths", [1, 1], "INT64"),
        ]
        for tensor, values in zip(inputs, ([[3]], [[1, 2]], [[2]]), strict=True):
            tensor.set_data_from_numpy(np.array(values, np.int64))
        named = client.infer(NAME, inputs, request_id="of-grpc").get_response().id
        made = client.infer(NAME, inputs).get_response().id
    assert named == "of-grpc"
    reply = call(
        live.server.http_port, "POST", f"/v1/models/{NAME}:predict", {"instances": [{"user": 3, "items": [1]}]}
    )
    assert reply.status == 200, reply.content
    of_v1 = reply.headers["emberline-request-id"]
    assert {len(made), len(of_v1)} == {32}
    assert set(table(live, 3).column("served_id").to_pylist()) == {named, made, of_v1}


def test_there_is_no_log_by_default_and_no_id_is_made(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        live.version()
        started(live)
        assert "id" not in infer(live, body([5], [[1]]))
        assert "id" not in infer(live, body([5], [[1]]), BY_PYTHON)
        assert live.report()["feature_log"] is None
        assert not (live.folder / "log").exists()


def test_a_sample_follows_from_the_ids_alone(tmp_path: Path) -> None:
    with Live(tmp_path, **{**ALL, "feature_log_share": 0.3}) as live:
        live.version()
        started(live)
        names = [f"request-{number}" for number in range(120)]
        for number, name in enumerate(names):
            infer(live, body([5], [[1]], id=name), BY_PYTHON if number % 2 else None)
        wanted = {name for name in names if sample_point(name) < 0.3}
        assert 15 < len(wanted) < 60
        assert set(table(live, len(wanted)).column("served_id").to_pylist()) == wanted


def test_personal_columns_are_hashed_or_left_out_before_anything_is_written(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key that nobody guesses\n")
    with Live(tmp_path, **ALL, feature_log_hash="user", feature_log_drop="items") as live:
        live.version()
        started(live, feature_log_key=key)
        user = 987654321987654321
        infer(live, body([user], [[1, 2]]))
        found = table(live, 1)
        assert "user" not in found.column_names
        assert "items" not in found.column_names
        assert found.column("user.hash").to_pylist() == [keyed_hash(b"a key that nobody guesses", user)]
        written = b"".join(path.read_bytes() for path in (live.folder / "log").rglob("*") if path.is_file())
        assert str(user).encode() not in written
        assert user.to_bytes(8, "little") not in written


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"feature_log_drop": "usr"}, "feature_log_drop: the model has no input 'usr'"),
        ({"feature_log_hash": "user"}, "without --feature-log-key"),
        ({"feature_log_drop": "user", "feature_log_hash": "user"}, "without --feature-log-key"),
    ],
)
def test_a_log_that_might_hold_what_was_to_be_left_out_is_not_written(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with Live(tmp_path, **ALL, **options) as live:
        live.version()
        started(live)
        infer(live, body([5], [[1]]))
        live.until(lambda: reason in log(live)["trouble"])
        assert not list((live.folder / "log").rglob("*.parquet"))
        page = (
            urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics", timeout=10).read().decode()
        )
        assert f'emberline_feature_log_failing{{model="{NAME}"}} 1\n' in page


def test_a_model_that_wants_a_log_serves_without_a_folder_for_it_and_says_so(live: Live) -> None:
    live.start()
    assert "id" not in infer(live, body([5], [[1]]))
    assert "--feature-log" in log(live)["trouble"]


def test_the_log_goes_on_over_updates_and_ends_whole(live: Live) -> None:
    first = next(iter(live.snapshots.values()))
    started(live)
    ask(live.repository, [{"user": 1, "items": [2]}], request_id="a")
    live.reaches(live.delta(first))
    ask(live.repository, [{"user": 1, "items": [2]}], request_id="b")
    live.reaches(live.version())
    ask(live.repository, [{"user": 1, "items": [2]}], request_id="c")
    live.stop()
    files = list((live.folder / "log").rglob("*.parquet"))
    assert not [path for path in files if path.name.startswith(".")]
    found = pa.concat_tables([pq.read_table(path) for path in files])
    # Others are those of `reaches`, which have no id.
    assert dict(
        zip(found.column("served_id").to_pylist(), found.column("served_snapshot").to_pylist(), strict=True)
    ) == {
        "a": "1.0",
        "b": "1.1",
        "c": "2.0",
    }


def test_metrics_count_what_is_logged(live: Live) -> None:
    started(live)
    infer(live, body([5, 6], [[1], [2]]))
    table(live, 2)
    page = urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics", timeout=10).read().decode()
    for name, value in {"share": 1, "requests_total": 1, "rows_total": 2, "files_total": 1, "failing": 0}.items():
        assert f'emberline_feature_log_{name}{{model="{NAME}"}} {value}\n' in page
    assert f'emberline_feature_log_dropped_total{{model="{NAME}",reason="full"}} 0\n' in page


def test_the_oldest_files_go_when_there_are_too_many_bytes_or_days(tmp_path: Path) -> None:
    rows = pa.table({"value": np.random.default_rng(0).integers(0, 2**62, 4096)})
    folder = LogFolder(tmp_path / "log", max_bytes=200_000, max_age_s=3600.0, every_s=0.0)
    for _ in range(20):
        folder.write(rows)
        folder.tick(time.monotonic())
    files = sorted((tmp_path / "log").iterdir())
    assert 2 <= len(files) <= 6
    assert sum(path.stat().st_size for path in files) <= 200_000
    assert folder.counts.files == 20
    assert folder.counts.deleted_bytes == 20 - len(files)
    assert folder.bytes == sum(path.stat().st_size for path in files)
    os.utime(files[0], (1, 1))
    (tmp_path / "log" / ".writing-left.parquet").write_bytes(b"")
    os.utime(tmp_path / "log" / ".writing-left.parquet", (1, 1))
    (tmp_path / "log" / "not-of-the-log.txt").write_bytes(b"")
    folder.tick(time.monotonic() + 60)
    assert sorted((tmp_path / "log").iterdir()) == sorted([*files[1:], tmp_path / "log" / "not-of-the-log.txt"])
    assert folder.counts.deleted_age == 1


def test_rows_that_cannot_be_written_are_counted_and_later_ones_are_written(tmp_path: Path) -> None:
    blocked = tmp_path / "log"
    blocked.write_text("a file where the folder should be")
    folder = LogFolder(blocked, max_bytes=1 << 20, max_age_s=3600.0, every_s=0.0)
    folder.write(pa.table({"value": [1, 2, 3]}))
    assert folder.counts.lost_rows == 3
    assert folder.trouble
    blocked.unlink()
    folder.write(pa.table({"value": [4]}))
    folder.close()
    assert not folder.trouble
    assert folder.counts.rows == 1
    (path,) = blocked.iterdir()
    assert json.loads(json.dumps(pq.read_table(path).to_pydict())) == {"value": [4]}
    assert path.stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("headers", [{}, BY_PYTHON])
def test_the_access_log_names_the_id_that_a_request_was_given(live: Live, headers: dict[str, str]) -> None:
    access = live.folder / "access.log"
    started(live, access_log=access, log_format="json")
    made = infer(live, body([9], [[4]]), headers)["id"]
    live.until(lambda: access.read_bytes().count(b"\n") >= 1)
    assert [json.loads(line)["id"] for line in access.read_text().splitlines()] == [made]
