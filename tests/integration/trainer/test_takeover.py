"""A run on history until a moment takes over from one that follows a stream: each event is trained on once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.peers import PeerMissingError
from serving import Server, ServerConfig
from storage.errors import ConfigError
from tests.integration.trainer.follow_runs import followed, trained_state
from tests.integration.trainer.test_follow_joined import as_bytes
from tests.integration.trainer.update_runs import POLICY
from tests.support import kafka_server
from tests.support.kafka_brokers import KafkaBrokers
from tests.support.redis_server import RedisServer, fetch
from trainer import train, update
from trainer.config import TrainConfig, parse_content

# Lately, because brokers remove messages by their times.
T = int(time.time()) - 3600
MOMENT = datetime.fromtimestamp(T, UTC).isoformat()
ROWS, OLDER = 1200, 700


@pytest.fixture
def events(newer: Path) -> Any:
    """Rows in the order in which they came: some events of before the moment come after it, and the other way round."""
    table = pq.read_table(newer).slice(0, ROWS)
    at = T - OLDER + np.arange(ROWS, dtype=np.int64)
    at[OLDER - 20 : OLDER + 20] = np.random.default_rng(1).permutation(at[OLDER - 20 : OLDER + 20])
    return table.append_column("at", pa.array(at.astype(np.float64)))


@contextmanager
def as_files(folder: Path, table: Any) -> Iterator[Path | str]:
    folder.mkdir()
    for start in range(0, table.num_rows, 250):
        pq.write_table(table.slice(start, 250), folder / f"{start:06d}.parquet")
    yield folder


@contextmanager
def as_entries(folder: Path, table: Any) -> Iterator[Path | str]:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"no redis-server: {error}")
    folder.mkdir()
    server = RedisServer(folder)
    for start in range(0, table.num_rows, 50):
        came = T - OLDER + start + 50
        server.client.xadd("clicks", {"rows": as_bytes(table.slice(start, 50))}, id=f"{came * 1000}-0")
    yield f"redis://127.0.0.1:{server.port}/0?stream=clicks&arrow=rows"
    server.stop()


@contextmanager
def as_messages(folder: Path, table: Any) -> Iterator[Path | str]:
    brokers = KafkaBrokers()
    for start in range(0, table.num_rows, 50):
        brokers.send("clicks", [as_bytes(table.slice(start, 50))], 0)
    yield f"kafka://{brokers.servers}/clicks"


@contextmanager
def as_timed_messages(folder: Path, table: Any) -> Iterator[Path | str]:
    try:
        kafka_server.fetch()
    except PeerMissingError as error:
        pytest.skip(f"no broker: {error}")
    server = kafka_server.KafkaServer(folder)
    for start in range(0, table.num_rows, 50):
        came = T - OLDER + start + 50
        server.send("clicks", [as_bytes(table.slice(start, 50))], 0, unix_ms=came * 1000)
    yield f"kafka://{server.servers}/clicks"
    server.stop()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "stream",
    [as_files, as_entries, as_messages, as_timed_messages],
    ids=["folder", "redis", "kafka without times", "kafka"],
)
def test_a_run_on_history_goes_on_with_the_stream_and_takes_over_in_the_server(
    config: TrainConfig, events: Any, tmp_path: Path, stream: Callable[[Path, Any], Any]
) -> None:
    content = config.model_dump(mode="json")
    content["training"] = {**content["training"], "time_column": "at", "shuffle": False}
    content["publish"] = {"keep_states": 32}
    plain = parse_content(content)
    place, models = tmp_path / "place", tmp_path / "place" / "models"
    older = events.filter(pc.less(events.column("at"), float(T)))
    younger = events.filter(pc.greater_equal(events.column("at"), float(T)))
    assert older.num_rows == OLDER
    train(plain, events.slice(0, 200), output=place / "first", repository=models, progress=False)
    server = Server(
        ServerConfig(model_repository=models, store=tmp_path / "store", http_port=0, grpc_port=0, metrics_port=0)
    )
    server.start()
    try:
        with stream(tmp_path / "stream", events) as source:
            (place / "run").symlink_to("first")
            before = followed(place, source, publish=POLICY)
            assert before.rows == ROWS
            wait_served(server, f"1.{len(before.published)}")
            (place / "run").unlink()
            train(plain, older, output=place / "second", repository=models, progress=False)
            wait_served(server, "2.0")
            shutil.copytree(place, tmp_path / "other")
            (place / "run").symlink_to("second")
            report = followed(place, source, start=MOMENT, publish=POLICY)
            wait_served(server, f"2.{len(report.published)}")
            again = followed(place, source, publish=POLICY)
    finally:
        server.stop()
    assert report.rows == younger.num_rows == ROWS - OLDER
    assert (again.rows, again.published) == (report.rows, [])
    other = tmp_path / "other"
    expected = update(other / "second", younger, repository=other / "models", publish=POLICY, progress=False)
    assert trained_state(plain, report) == trained_state(plain, expected)


def test_a_time_needs_times_in_the_rows_and_is_read(place: Path, tmp_path: Path) -> None:
    (tmp_path / "stream").mkdir()
    with pytest.raises(ConfigError, match=r"start: .*set training\.time_column"):
        followed(place, tmp_path / "stream", start="2026-11-27T10:00:00Z")
    with pytest.raises(ConfigError, match="start is 'erliest', expected earliest, latest, or a time"):
        followed(place, tmp_path / "stream", start="erliest")
    with pytest.raises(ConfigError, match="expected seconds since 1970"):
        followed(place, tmp_path / "stream", start=-1.0)


def wait_served(server: Server, name: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        state: Any = server.repository.snapshots("clicks")
        if state["served"] is not None and state["served"]["name"] == name:
            return
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
