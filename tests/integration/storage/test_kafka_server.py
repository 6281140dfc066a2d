"""A topic on a broker of its own process, which finds messages by their time and is stopped and started again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, TopicPartition

from benchmarks.peers import PeerMissingError
from storage.data import DataOptions
from storage.data.streams import StreamSource, kafka_client, open_stream
from storage.data.streams.address import Address
from storage.data.streams.base import Credentials
from storage.data.streams.start import CLOCKS_MS
from storage.errors import ConfigError
from tests.integration.storage.test_kafka_topic import WANTED, read, text
from tests.support.kafka_server import KafkaServer, fetch
from tests.support.proxies import wait_until

# Lately, because brokers remove messages by their times.
T = int(time.time() * 1000) - 60 * CLOCKS_MS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KafkaServer]:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"no broker: {error}")
    server = KafkaServer(tmp_path)
    yield server
    server.stop()


def opened(server: KafkaServer) -> StreamSource:
    return open_stream(f"kafka://{server.servers}/clicks?value=json", WANTED, DataOptions())


def test_a_stream_begins_with_the_messages_of_a_time(server: KafkaServer) -> None:
    server.create("clicks", partitions=3)
    # Messages of partition 0 end before the time, those of 1 lie around it, and those of 2 are of later.
    for partition, first in enumerate((T - 10 * CLOCKS_MS, T - 5 * CLOCKS_MS, T)):
        for number in range(8):
            at = first + number * CLOCKS_MS
            server.send("clicks", [text(100 * partition + number)], partition, unix_ms=at)
    source = opened(server)
    position = source.seek(None, T)
    # A minute before the time, because clocks differ.
    assert position["offsets"] == {"0": 8, "1": 4, "2": 0}
    assert sorted(read(source)[0]) == [104, 105, 106, 107, *range(200, 208)]
    source.close()


def test_a_broker_that_is_gone_is_waited_for_and_said_once(
    server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.send("clicks", map(text, range(50)), 0)
    source = opened(server)
    source.seek(None, "earliest")
    assert read(source)[0] == list(range(50))
    server.stop()
    wait_until(lambda: source.read(100) is None and bool(caplog.records), "a warning")
    assert source.is_expecting
    server.start()
    assert read(source)[0] == []
    assert not source.is_expecting
    server.send("clicks", map(text, range(50, 80)), 0)
    found: list[int] = []
    wait_until(lambda: found.extend(read(source)[0]) or len(found) == 30, "30 messages")
    assert found == list(range(50, 80))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["cannot be reached" in said[0], "is reached again" in said[1], len(said)] == [True, True, 2]
    assert "Connection refused" in said[0]
    source.close()


@pytest.mark.parametrize("has_reason", [True, False])
def test_a_warning_has_the_reason_also_when_that_comes_after_the_failure(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, has_reason: bool
) -> None:
    monkeypatch.setattr(kafka_client, "_LOOK_EVERY_S", 0.0)
    address = Address.of("kafka://127.0.0.1:1/clicks", ())
    client = kafka_client.KafkaClient(address, {}, "clicks", Credentials())
    client.failed(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    client.check([TopicPartition("clicks", 0)])
    assert client.is_failing
    assert not caplog.records
    if has_reason:
        client.failed(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    client.failed(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    for _ in range(2):
        client.check([TopicPartition("clicks", 0)])
    assert len(caplog.records) == 1
    assert ("Connection refused" in caplog.records[0].getMessage()) == has_reason


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_an_error_with_its_reason() -> None:
    source = open_stream("kafka://127.0.0.1:1/clicks?socket.timeout.ms=1000", WANTED, DataOptions())
    with pytest.raises(ConfigError, match=r"cannot be read: .*Connection refused"):
        source.seek(None, "earliest")
