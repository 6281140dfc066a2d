"""Brokers that a storm stops and starts again, with one stream of clicks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
from pyarrow import ipc

from tests.support import kafka_server, redis_server


def as_bytes(table: Any) -> bytes:
    """Encodes rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


class RedisBroker:
    """A stream of Redis. Raises PeerMissingError."""

    def __init__(self, folder: Path) -> None:
        redis_server.fetch()
        folder.mkdir()
        self._server = redis_server.RedisServer(folder)
        self.url = f"redis://127.0.0.1:{self._server.port}/0?stream=clicks&arrow=rows"
        self.start, self.stop = self._server.start, self._server.stop

    def add(self, number: int, table: Any) -> bool:
        """Adds rows as an entry of that number, once; returns False if the server is gone."""
        try:
            self._server.client.xadd("clicks", {"rows": as_bytes(table)}, id=f"{number + 1}-0")
        except redis.ResponseError:  # it was added, and the answer was lost
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return True


class KafkaBroker:
    """A topic of one partition, whose order does not depend on when messages come. Raises PeerMissingError."""

    def __init__(self, folder: Path) -> None:
        kafka_server.fetch()
        self._server = kafka_server.KafkaServer(folder)
        self.url = f"kafka://{self._server.servers}/clicks"
        # It stops between two messages: one that was sent and not answered would be sent again.
        self._lock, self._is_there = threading.Lock(), True

    def start(self) -> None:
        """Starts it again."""
        with self._lock:
            self._server.start()
            self._is_there = True

    def stop(self) -> None:
        """Ends it."""
        with self._lock:
            self._is_there = False
            self._server.stop()

    def add(self, number: int, table: Any) -> bool:
        """Sends rows as a message; returns False if the broker is gone."""
        with self._lock:
            if self._is_there:
                self._server.send("clicks", [as_bytes(table)], 0)
            return self._is_there
