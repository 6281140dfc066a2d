"""Runs a broker that speaks Kafka's protocol in a process of its own: noida-db, out of its wheel, under build/.

It is not Apache Kafka, which no package index has as a program. Unlike the brokers that librdkafka has for tests, it is
stopped and started again with what was in its topics, and finds offsets by the times of messages.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers import PeerMissingError
from benchmarks.peers.environment import call
from tests.support.proxies import listens, wait_until
from tests.support.server_process import free_ports

FOLDER = Path(__file__).parents[2] / "build" / "noida-db"
PROGRAM = FOLDER / "noida-db"
REQUIREMENT = "noida-db==0.2.3"
SHA256 = "40a2fb15567e3d344e7483df62bb439e7d64ac6fb232f4f223554aed58204f82"


def fetch() -> None:
    """Downloads and unpacks the program, once. Raises PeerMissingError."""
    if not PROGRAM.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        call([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(FOLDER), REQUIREMENT])
        wheel = next(FOLDER.glob("*.whl"))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
            raise PeerMissingError(f"{wheel.name}: its digest is not the expected one")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = PROGRAM.with_suffix(".part")
            unpacked.write_bytes(archive.read("noida_db/noida-db"))
        unpacked.chmod(0o755)
        unpacked.rename(PROGRAM)
    done = subprocess.run([PROGRAM, "version"], capture_output=True, check=False)
    if done.returncode:
        raise PeerMissingError(f"noida-db does not start: {done.stderr.decode()[-200:]}")


class KafkaServer:
    """A broker on a free port, with a file of what is in it, so that it may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.servers = f"127.0.0.1:{self._port}"
        self.start()
        self._producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0, "log_level": 0})

    def start(self) -> None:
        """Starts the broker with what is in its file, and waits until it answers."""
        command = [str(PROGRAM), "start", "--only", "kafka", "--kafka-port", str(self._port)]
        command += ["--data-dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(partial(listens, self._port), "noida-db")

    def stop(self) -> None:
        """Ends the broker; what is in it stays in the file."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    def create(self, topic: str, partitions: int) -> None:
        """Makes a topic; `send` makes one of one partition."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)

    def send(self, topic: str, values: Iterable[bytes], partition: int, unix_ms: int = 0) -> None:
        """Appends messages to a partition, and waits until they are there. unix_ms: their time; 0: the broker's."""
        for value in values:
            self._producer.produce(topic, value, partition=partition, timestamp=unix_ms)
            self._producer.poll(0)
        assert self._producer.flush(20) == 0
