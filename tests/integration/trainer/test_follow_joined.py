"""Training on rows whose labels come later, in a stream of their own: the weights are those of a file with both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow import ipc

from benchmarks.peers import PeerMissingError
from emberline.cli.update import command as update_command
from storage.errors import CheckpointError, ConfigError
from tests.integration.trainer.follow_runs import followed, killed, trained_state
from tests.integration.trainer.update_runs import NEWER_ROWS, check_published
from tests.support.kafka_brokers import KafkaBrokers
from tests.support.redis_server import RedisServer, fetch
from trainer import UpdateReport
from trainer.checkpoint import checkpoints, read_state
from trainer.config import TrainConfig, parse_content

JOIN = {"key": "request", "label": "clicked", "window_seconds": 20.0, "lateness_seconds": 2.0}
#: Writes rows and labels somewhere, and yields the two streams.
Streams = Callable[[Path, Any, Any], Any]


def with_join(place: Path, config: TrainConfig, **join: object) -> None:
    content = config.model_dump(mode="json")
    content["training"]["time_column"] = "at"
    content["data"]["join"] = {**JOIN, **join}
    (place / "run" / "config.json").write_text(parse_content(content).model_dump_json())


def split(newer: Path) -> tuple[Any, Any]:
    """Cuts rows, a tenth of a second apart, into rows without labels and labels; the last of each ends a window."""
    table = pq.read_table(newer)
    clicked = table.column("clicked").to_pylist()
    rows = table.drop_columns(["clicked"])
    rows = pa.concat_tables([rows, rows.slice(0, 1)])
    count = table.num_rows
    rows = rows.append_column("request", pa.array(range(count + 1), pa.int64()))
    rows = rows.append_column("at", pa.array([number / 10 for number in range(count)] + [900.0]))
    # Labels come up to 12 s after their rows, out of order by 2 s at most, and some more than once.
    found = [(number, number / 10 + 10 + 2 * (number % 2)) for number in range(count) if clicked[number]]
    found += [(number, at + 1.5) for number, at in found[::7]] + [(10**9, 900.0)]
    found.sort(key=lambda each: each[1] + (each[0] % 3) * 0.5)
    labels = pa.table({"request": [number for number, _ in found], "at": [at for _, at in found]})
    return rows, labels


@contextmanager
def as_files(folder: Path, rows: Any, labels: Any) -> Iterator[tuple[Path, Path]]:
    for name, table, size in (("rows", rows, 300), ("labels", labels, 111)):
        (folder / name).mkdir()
        for start in range(0, table.num_rows, size):
            pq.write_table(table.slice(start, size), folder / name / f"{start:06d}.parquet", row_group_size=70)
    yield folder / "rows", folder / "labels"


def as_bytes(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@contextmanager
def as_entries(folder: Path, rows: Any, labels: Any) -> Iterator[tuple[str, str]]:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"no redis-server: {error}")
    (folder / "redis").mkdir()
    server = RedisServer(folder / "redis")
    for name, table in (("rows", rows), ("labels", labels)):
        for start in range(0, table.num_rows, 50):
            server.client.xadd(name, {"data": as_bytes(table.slice(start, 50))})
    url = f"redis://127.0.0.1:{server.port}/0"
    yield f"{url}?stream=rows&arrow=data", f"{url}?stream=labels&arrow=data"
    server.stop()


@contextmanager
def as_messages(folder: Path, rows: Any, labels: Any) -> Iterator[tuple[str, str]]:
    brokers = KafkaBrokers()
    for name, table in (("rows", rows), ("labels", labels)):
        for start in range(0, table.num_rows, 10):
            brokers.send(name, [as_bytes(table.slice(start, 10))], 0)
    yield f"kafka://{brokers.servers}/rows", f"kafka://{brokers.servers}/labels"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("streams", [as_files, as_entries, as_messages], ids=["folder", "redis", "kafka"])
def test_labels_that_come_later_train_what_a_file_with_them_trains_also_when_it_is_killed(
    place: Path, newer: Path, config: TrainConfig, whole: tuple[Path, UpdateReport], tmp_path: Path, streams: Streams
) -> None:
    with_join(place, config)
    rows, labels = split(newer)
    with streams(tmp_path, rows, labels) as (source, others):
        for step, times in (("take", 6), ("save", 2), ("write", 1), ("take", 3)):
            killed(place, source, step, times, labels=others)
        report = followed(place, source, labels=others)
    assert report.rows == NEWER_ROWS
    assert trained_state(config, report) == trained_state(config, whole[1])
    check_published(place, config)
    assert report.followed is not None
    joined = report.followed.joined
    clicked = sum(pq.read_table(newer).column("clicked").to_pylist())
    assert joined == {
        "waiting_rows": 1,
        "held_labels": joined["held_labels"],
        "rows": NEWER_ROWS,
        "labels": labels.num_rows,
        "rows_late": 0,
        "labels_late": 0,
        "positives": clicked,
    }


def test_the_command_joins_events_of_one_stream_by_their_kind(
    place: Path, newer: Path, config: TrainConfig, tmp_path: Path
) -> None:
    with_join(place, config, kind={"column": "event", "row": "view", "label": "click"})
    rows, labels = split(newer)
    rows = rows.append_column("event", pa.array(["view"] * rows.num_rows))
    labels = labels.append_column("event", pa.array(["click"] * labels.num_rows))
    stream = tmp_path / "stream"
    stream.mkdir()
    whole = pa.concat_tables([rows, labels], promote_options="default")
    whole = whole.sort_by("at")
    pq.write_table(whole, stream / "a.parquet")
    command = [str(place / "run"), "--repository", str(place / "models"), "--follow", str(stream), "--until-idle", "0"]
    result = CliRunner().invoke(update_command, [*command, "--quiet", "--every-rows", "500"])
    assert result.exit_code == 0, result.output
    assert f"trained {NEWER_ROWS:,} rows" in result.output
    clicked = sum(pq.read_table(newer).column("clicked").to_pylist())
    assert f"joined {clicked} of {NEWER_ROWS} rows with a label; 0 rows and 0 labels came too late" in result.output
    result = CliRunner().invoke(update_command, [*command, "--labels", str(stream)])
    assert isinstance(result.exception, ConfigError)
    assert "data.join.kind tells" in str(result.exception)


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_labels_in_the_topic_of_their_rows_need_none_of_their_columns(
    place: Path, newer: Path, config: TrainConfig, form: str
) -> None:
    with_join(place, config, kind={"column": "event", "row": "view", "label": "click"})
    rows, labels = split(newer)
    rows = pa.concat_tables([rows.slice(0, 400), rows.slice(NEWER_ROWS)])
    labels = labels.filter(pc.field("request") < 400)
    brokers = KafkaBrokers()
    events = [
        (at, as_bytes(one) if form == "arrow" else json.dumps(one.to_pylist()[0]).encode())
        for kind, table in (("view", rows), ("click", labels))
        for number in range(table.num_rows)
        for one in [table.slice(number, 1).append_column("event", pa.array([kind]))]
        for at in one.column("at").to_pylist()
    ]
    brokers.send("events", [value for _, value in sorted(events, key=lambda each: each[0])], 0)
    report = followed(place, f"kafka://{brokers.servers}/events?value={form}")
    assert report.followed is not None
    joined = report.followed.joined
    clicked = sum(pq.read_table(newer).slice(0, 400).column("clicked").to_pylist())
    assert (joined["rows"], joined["rows_late"], joined["labels_late"]) == (400, 0, 0)
    assert joined["positives"] == clicked


def test_what_waits_is_needed_to_go_on_and_old_logs_go(
    place: Path, newer: Path, config: TrainConfig, tmp_path: Path
) -> None:
    with_join(place, config)
    rows, labels = split(newer)
    with as_files(tmp_path, rows.slice(0, 900), labels) as (source, others):
        for _ in range(3):
            followed(place, source, labels=others)
        logs = sorted((place / "run" / "join").glob("*.log"))
        name = next(iter(read_state(checkpoints(place / "run")[-1]).streams))
        assert name == f"{source} + {others}"
        logs[0].unlink()
        with pytest.raises(CheckpointError, match="events that waited to be joined"):
            followed(place, source, labels=others)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"join": {**JOIN, "label": "click"}}}, "no task has 'click' as its label of numbers; did you mean"),
        ({"data": {"join": JOIN}, "training": {}}, "data.join: joins by the times of events; set training.time_column"),
        ({"data": {"join": {**JOIN, "key": ["clicked"]}}}, "the column 'clicked' stands twice"),
        ({"data": {"join": {**JOIN, "windw_seconds": 1}}}, "data.join.windw_seconds: unknown key; did you mean"),
    ],
)
def test_a_join_that_cannot_be_is_refused(config: TrainConfig, changes: dict[str, Any], said: str) -> None:
    content = {**config.model_dump(mode="json"), "training": {"time_column": "at"}, **changes}
    with pytest.raises(ConfigError) as caught:
        parse_content(content)
    assert said in str(caught.value)


def test_labels_need_to_be_told_how_they_are_joined(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"labels: .*give data\.join"):
        followed(place, tmp_path, labels=tmp_path)
