"""Runs the brokers that librdkafka has for tests, in this process."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer


class KafkaBrokers:
    """Brokers that keep the newest messages of each partition, up to 5 MB. They end with this object."""

    def __init__(self) -> None:
        # The producer brings the brokers, which other clients reach over TCP.
        self._producer = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 2})
        brokers = self._producer.list_topics(timeout=20).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def send(self, topic: str, values: Iterable[bytes | None], partition: int) -> None:
        """Appends messages to a partition, and waits until they are there."""
        for value in values:
            self._producer.produce(topic, value, partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(20) == 0
