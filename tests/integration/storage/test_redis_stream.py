"""A stream of a real redis-server: every entry once, from any position, and what is lost is said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

from benchmarks.peers import PeerMissingError
from storage.data import DataOptions, Wanted
from storage.data.streams import Credentials, Position, Start, StreamSource, open_stream
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec
from tests.support.redis_server import RedisServer, fetch

WANTED = Wanted(
    (
        InputSpec(name="user", dtype="INT64"),
        InputSpec(name="price", dtype="FP32", column_type="integer"),
        InputSpec(name="tags", dtype="INT64", kind="list"),
    ),
    {"clicked": "label"},
)
ROW = {"user": "7", "price": "3", "tags": "1|2", "clicked": "1", "new": "x"}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"no redis-server: {error}")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def server(started: RedisServer) -> RedisServer:
    started.client.flushall()
    return started


def stream(
    server: RedisServer, position: Position | None = None, start: Start = "earliest", more: str = "", **options: object
) -> StreamSource:
    url = f"redis://127.0.0.1:{server.port}/0?stream=clicks{more}"
    source = open_stream(url, WANTED, DataOptions.model_validate(options))
    source.seek(position, start)
    return source


def add(server: RedisServer, users: range, **more: str) -> None:
    with server.client.pipeline(transaction=False) as calls:
        for user in users:
            calls.xadd("clicks", {**ROW, "user": str(user), **more})
        calls.execute()


def read(source: StreamSource) -> tuple[list[int], list[Position]]:
    users: list[int] = []
    positions: list[Position] = []
    while (piece := source.read(100)) is not None:
        users += piece.table["user"].to_pylist()
        positions += [piece.after(row + 1) for row in range(piece.table.num_rows)]
    return users, positions


def test_fields_are_columns_and_every_position_continues(server: RedisServer) -> None:
    add(server, range(50))
    source = stream(server)
    piece = source.read(100)
    assert piece is not None
    kinds = {entry.name: entry.type for entry in piece.table.schema}
    assert kinds == {"user": pa.int64(), "price": pa.int64(), "tags": pa.list_(pa.int64()), "clicked": pa.float64()}
    assert piece.table["tags"][0].as_py() == [1, 2]
    positions = [piece.after(row + 1) for row in range(50)]
    add(server, range(50, 60))
    assert read(source)[0] == list(range(50, 60))
    for row in (0, 20, 49):
        assert read(stream(server, positions[row]))[0] == list(range(row + 1, 60))
    assert source.waiting() == (0, "entries")
    assert read(stream(server, start="latest"))[0] == []


def test_json_and_batches_of_arrow(server: RedisServer) -> None:
    server.client.xadd("clicks", {"data": '{"user": 1, "price": 2, "tags": [3],\n "clicked": 0, "x": "y"}'})
    source = stream(server, more="&json=data")
    assert read(source)[0] == [1]
    server.client.delete("clicks")
    positions: list[Position] = []
    for first in (0, 10):
        table = pa.table(
            {
                "x": ["y"] * 10,
                "user": range(first, first + 10),
                "price": [1] * 10,
                "tags": [[1]] * 10,
                "clicked": [1] * 10,
            }
        )
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        server.client.xadd("clicks", {"rows": sink.getvalue().to_pybytes()})
    users, positions = read(stream(server, more="&arrow=rows"))
    assert users == list(range(20))
    for row in (3, 9, 12):
        assert read(stream(server, positions[row], more="&arrow=rows"))[0] == list(range(row + 1, 20))


def test_what_was_trimmed_unread_is_lost_and_what_was_read_is_not(server: RedisServer) -> None:
    add(server, range(100))
    positions = read(stream(server))[1]
    server.client.xtrim("clicks", maxlen=50, approximate=False)
    assert read(stream(server, positions[60]))[0] == list(range(61, 100))
    assert read(stream(server, positions[49]))[0] == list(range(50, 100))  # the last one read is gone, no other one
    with pytest.raises(ConfigError, match=r"10 entries behind .*, the last one read, were trimmed before"):
        stream(server, positions[39])
    again = open_stream(f"redis://127.0.0.1:{server.port}/0?stream=clicks", WANTED, DataOptions())
    again.seek(positions[39], "earliest", skip_lost=True)
    assert read(again)[0] == list(range(50, 100))
    source = stream(server, positions[99])
    add(server, range(100, 120))
    server.client.xtrim("clicks", maxlen=5, approximate=False)
    with pytest.raises(ConfigError, match="15 entries behind"):
        source.read(100)
    server.client.delete("clicks")
    add(server, range(3))
    with pytest.raises(ConfigError, match="was made anew: 100 entries had been added"):
        stream(server, positions[99])


def test_it_begins_with_a_time(server: RedisServer) -> None:
    moment = 1_700_000_000_000
    with server.client.pipeline(transaction=False) as calls:
        for user in range(10):
            calls.xadd("clicks", {**ROW, "user": str(user)}, id=f"{moment + user * 60_000}-0")
        calls.execute()
    # A minute before the time, because clocks differ.
    assert read(stream(server, start=moment - 1))[0] == list(range(10))
    source = stream(server, start=moment + 5 * 60_000)
    assert source.waiting() == (10, "entries")
    users, positions = read(source)
    assert users == [4, 5, 6, 7, 8, 9]
    assert source.waiting() == (0, "entries")
    assert read(stream(server, positions[2]))[0] == [7, 8, 9]
    late = stream(server, start=moment + 10**9)
    assert read(late)[0] == []
    add(server, range(10, 12))
    assert read(late)[0] == [10, 11]
    early = stream(server, start=moment + 5 * 60_000)
    server.client.xtrim("clicks", maxlen=4, approximate=False)
    with pytest.raises(ConfigError, match="was trimmed before the end of the stream"):
        early.read(100)


def test_entries_that_were_deleted_one_by_one_are_no_loss(server: RedisServer) -> None:
    add(server, range(10))
    names = [name for name, _ in server.client.xrange("clicks")]
    server.client.xdel("clicks", *names[2:5])
    users, positions = read(stream(server))
    assert users == [0, 1, *range(5, 10)]
    server.client.xtrim("clicks", maxlen=0, approximate=False)
    add(server, range(10, 12))
    assert read(stream(server, positions[-1]))[0] == [10, 11]


def test_it_reconnects(server: RedisServer) -> None:
    add(server, range(3))
    source = stream(server)
    assert read(source)[0] == [0, 1, 2]
    server.stop()
    assert source.read(100) is None
    assert source.is_expecting
    server.start()
    add(server, range(3, 5))
    until = time.monotonic() + 20
    found: list[int] = []
    while len(found) < 2 and time.monotonic() < until:
        found += read(source)[0]
        time.sleep(0.02)
    assert found == [3, 4]


def test_a_bad_entry_is_named_or_left_out(server: RedisServer) -> None:
    add(server, range(2))
    bad = server.client.xadd("clicks", {**ROW, "user": "me"}).decode()
    add(server, range(2, 4))
    with pytest.raises(InvalidInput, match=rf"stream=clicks: entry {bad}: column 'user': 'me' is no int64"):
        read(stream(server))
    assert read(stream(server, on_damaged="skip"))[0] == [0, 1, 2, 3]
    server.client.delete("clicks")
    server.client.xadd("clicks", {"user": "1"})
    with pytest.raises(ConfigError, match=r"entry .*: input 'price' wants the column 'price'"):
        read(stream(server))


def test_passwords_are_not_shown_and_faults_of_the_url_are(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"redis://me:hush@127.0.0.1:{server.port}/0?stream=clicks"
    with pytest.raises(ConfigError) as refused:
        open_stream(url, WANTED, DataOptions()).seek(None, "earliest")
    assert "hush" not in str(refused.value)
    assert "cannot be read" in str(refused.value)
    server.client.config_set("requirepass", "secret")
    url = f"redis://127.0.0.1:{server.port}/0?stream=clicks"
    source = open_stream(url, WANTED, DataOptions(), credentials=Credentials(password="secret"))
    source.seek(None, "earliest")
    assert source.name == f"redis://127.0.0.1:{server.port}/0?stream=clicks"
    source._redis.config_set("requirepass", "")  # type: ignore[attr-defined]


def test_faults_of_the_url_are_named() -> None:
    for wrong, said in (
        ("redis://h:1/0", "names no stream"),
        ("redis://h:1/0?streams=a", "unknown option 'streams'; did you mean 'stream'"),
        ("redis://h:1/a?stream=a", "expected the number of a database"),
        ("redis://h:1/0?stream=a&json=b&arrow=c", "json and arrow"),
    ):
        with pytest.raises(ConfigError, match=said):
            open_stream(wrong, WANTED, DataOptions())


def test_no_server_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"redis://127\.0\.0\.1:1/0\?stream=a: cannot be read"):
        open_stream("redis://127.0.0.1:1/0?stream=a", WANTED, DataOptions()).seek(None, "earliest")
