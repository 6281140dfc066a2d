"""A topic on librdkafka's own brokers: every message once, in one order, from any position."""

from __future__ import annotations

import json
import secrets
import time

import pyarrow as pa
import pytest
from pyarrow import ipc

from storage.data import DataOptions, Wanted
from storage.data.streams import Position, Start, StreamSource, open_stream
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec
from tests.support.kafka_brokers import KafkaBrokers

WANTED = Wanted((InputSpec(name="user", dtype="INT64"),), {"clicked": "label"})


@pytest.fixture(scope="module")
def brokers() -> KafkaBrokers:
    return KafkaBrokers()


@pytest.fixture
def topic(brokers: KafkaBrokers) -> str:
    return f"clicks-{secrets.token_hex(4)}"


def batch(users: range, **more: str) -> bytes:
    same = {name: [value] * len(users) for name, value in more.items()}
    table = pa.table({"user": users, "clicked": [1] * len(users), **same})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def text(user: int) -> bytes:
    return json.dumps({"user": user, "clicked": 0, "more": "x"}).encode()


def stream(
    brokers: KafkaBrokers,
    topic: str,
    position: Position | None = None,
    start: Start = "earliest",
    more: str = "",
    **options: object,
) -> StreamSource:
    source = open_stream(f"kafka://{brokers.servers}/{topic}{more}", WANTED, DataOptions.model_validate(options))
    source.seek(position, start)
    return source


def read(source: StreamSource) -> tuple[list[int], list[Position]]:
    """Returns the users until the end of all partitions, and the position behind each."""
    users: list[int] = []
    positions: list[Position] = []
    until = time.monotonic() + 30
    while time.monotonic() < until:
        piece = source.read(100)
        if piece is not None:
            users += piece.table["user"].to_pylist()
            positions += [piece.after(row + 1) for row in range(piece.table.num_rows)]
        elif not source.is_expecting:
            break
    return users, positions


def test_the_order_is_the_same_from_every_position(brokers: KafkaBrokers, topic: str) -> None:
    for partition, count in enumerate((300, 100, 0, 170)):
        brokers.send(topic, map(text, range(1000 * partition, 1000 * partition + count)), partition)
    source = stream(brokers, topic, more="?value=json")
    users, positions = read(source)
    assert sorted(users) == [*range(300), *range(1000, 1100), *range(3000, 3170)]
    assert users[:64] == list(range(64))
    assert users[64:128] == list(range(1000, 1064))
    assert source.waiting() == (0, "messages")
    source.close()
    for row in (0, 63, 64, 200, 400, 568, 569):
        resumed = stream(brokers, topic, json.loads(json.dumps(positions[row])), more="?value=json")
        assert read(resumed)[0] == users[row + 1 :]
        resumed.close()


def test_batches_of_arrow_are_continued_inside(brokers: KafkaBrokers, topic: str) -> None:
    brokers.send(topic, [batch(range(10)), batch(range(10, 15), more="x")], 0)
    brokers.send(topic, [batch(range(20, 24))], 1)
    users, positions = read(stream(brokers, topic))
    assert users == [*range(15), *range(20, 24)]
    for row in (3, 9, 12, 16):
        assert read(stream(brokers, topic, positions[row]))[0] == users[row + 1 :]
    source = stream(brokers, topic, start="latest")
    assert read(source)[0] == []
    brokers.send(topic, [batch(range(30, 32))], 2)
    until = time.monotonic() + 20
    found: list[int] = []
    while not found and time.monotonic() < until:
        found = read(source)[0]
    assert found == [30, 31]


def test_what_brokers_removed_unread_is_said(brokers: KafkaBrokers, topic: str) -> None:
    brokers.send(topic, [text(0)], 0)
    _, positions = read(stream(brokers, topic, more="?value=json"))
    brokers.send(topic, [b" " * 900_000 + text(user) for user in range(1, 12)], 0)
    with pytest.raises(ConfigError, match=r"partition 0 was read up to the offset 1, .* removed before they were read"):
        stream(brokers, topic, positions[0], more="?value=json")
    source = open_stream(f"kafka://{brokers.servers}/{topic}?value=json", WANTED, DataOptions())
    source.seek(positions[0], "earliest", skip_lost=True)
    users = read(source)[0]
    assert users == list(range(users[0], 12))
    assert users[0] > 1
    ahead = {**positions[0], "offsets": {**positions[0]["offsets"], "0": 99}}
    with pytest.raises(ConfigError, match="it was made anew"):
        stream(brokers, topic, ahead, more="?value=json")


def test_a_bad_message_is_named_or_left_out(brokers: KafkaBrokers, topic: str) -> None:
    brokers.send(topic, [text(1), b"{", text(2)], 0)
    with pytest.raises(InvalidInput, match=r"partition 0, offset 1: cannot be read"):
        read(stream(brokers, topic, more="?value=json"))
    brokers.send(topic, [None], 0)
    assert read(stream(brokers, topic, more="?value=json", on_damaged="skip"))[0] == [1, 2]
    brokers.send(topic, [b"no arrow"], 1)
    with pytest.raises(InvalidInput, match="is no Arrow IPC stream"):
        read(stream(brokers, topic))


def test_faults_of_the_url_are_named(brokers: KafkaBrokers, topic: str) -> None:
    for more, said in (
        ("?value=csv", "expected arrow or json"),
        ("?values=json", "unknown option 'values'; did you mean 'value'"),
        ("?no.such.thing=1", "no.such.thing"),
        ("?enable.auto.commit=true", r"enable\.auto\.commit is set by Emberline"),
    ):
        with pytest.raises(ConfigError, match=said):
            stream(brokers, topic, more=more)
    with pytest.raises(ConfigError, match="names no topic"):
        open_stream("kafka://127.0.0.1:1", WANTED, DataOptions())
    url = "kafka://me:hush@127.0.0.1:1/clicks?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
    assert open_stream(url, WANTED, DataOptions()).name == "kafka://127.0.0.1:1/clicks"
