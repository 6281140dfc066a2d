"""A storm over everything between a stream and the server: the weights are those of a run that nothing disturbed.

python -m pytest tests/integration/trainer/test_follow_storm.py
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import redis

from benchmarks.peers import PeerMissingError
from tests.integration.trainer.follow_runs import followed, trained_state
from tests.integration.trainer.test_follow_joined import as_bytes
from tests.integration.trainer.update_runs import NEWER_ROWS, check_published
from tests.support.redis_server import RedisServer, fetch
from tests.support.server_process import ServerProcess
from trainer.checkpoint import checkpoints, read_state
from trainer.config import TrainConfig

ROUNDS = 4
_WAIT_S = 120.0
# A process that may write no larger files than this cannot write a commit.
_FULL_BYTES = 2048


class Producer(threading.Thread):
    """Adds the rows of a table as entries, a few at a time, and tries again while the broker is gone."""

    def __init__(self, server: RedisServer, table: Any) -> None:
        super().__init__()
        self._server, self._table = server, table

    def run(self) -> None:
        for number, start in enumerate(range(0, ROUNDS * NEWER_ROWS, 20)):
            rows = as_bytes(self._table.slice(start % NEWER_ROWS, 20))
            while True:
                try:
                    self._server.client.xadd("clicks", {"rows": rows}, id=f"{number + 1}-0")
                    break
                except redis.ResponseError:  # it was added, and the answer was lost
                    break
                except (redis.ConnectionError, redis.TimeoutError):
                    time.sleep(0.05)
            time.sleep(0.04)


class Trainer:
    """`emberline update --follow` in a process of its own, as a supervisor would start it again."""

    def __init__(self, place: Path, url: str, *more: str, may_write: int | None = None) -> None:
        command = [sys.executable, "-m", "emberline", "update", str(place / "run"), "--follow", url, "--quiet"]
        command += ["--repository", str(place / "models"), "--every-steps", "4", *more]

        def limited() -> None:
            if may_write is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (may_write, may_write))

        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=limited
        )

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.communicate(timeout=_WAIT_S)

    def said(self) -> str:
        return self.process.communicate(timeout=_WAIT_S)[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RedisServer]:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"no redis-server: {error}")
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    yield server
    server.stop()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def trained_rows(place: Path) -> int:
    return read_state(checkpoints(place / "run")[-1]).position.rows - 2000


def served(server: ServerProcess) -> Any:
    with urllib.request.urlopen(f"{server.url}/v2/repository/models/clicks/snapshots", timeout=10) as answer:
        return json.load(answer)["served"]["id"]


@pytest.mark.slow
def test_a_storm_changes_no_weight_and_loses_no_snapshot(
    place: Path, newer: Path, config: TrainConfig, tmp_path: Path, broker: RedisServer
) -> None:
    undisturbed = Path(shutil.copytree(place, tmp_path / "undisturbed"))
    url = f"redis://127.0.0.1:{broker.port}/0?stream=clicks&arrow=rows"
    producer = Producer(broker, pq.read_table(newer))
    server = ServerProcess(place / "models", tmp_path / "store", tmp_path / "server.log")
    try:
        broker.client.xgroup_create("clicks", "unused", mkstream=True)
        producer.start()
        trainer = Trainer(place, url)
        until(lambda: trained_rows(place) >= 512, "the training does not begin")
        broker.stop()
        time.sleep(3.0)
        assert trainer.process.poll() is None  # it waits for the broker
        broker.start()
        before = trained_rows(place)
        until(lambda: trained_rows(place) > before, "the training does not go on behind the broker's restart")
        trainer.end(signal.SIGKILL)
        full = Trainer(place, url, may_write=_FULL_BYTES)
        said = full.said()
        assert full.process.returncode == 1
        assert "could not be written" in said or "cannot be written" in said or "File too large" in said
        trainer = Trainer(place, url)
        before = trained_rows(place)
        until(lambda: trained_rows(place) > before, "the training does not go on with space on the disk")
        server.kill()
        server = ServerProcess(place / "models", tmp_path / "store", tmp_path / "server.log")
        trainer.end(signal.SIGKILL)
        producer.join()
        last = Trainer(place, url, "--until-idle", "1")
        said = last.said()
        assert last.process.returncode == 0, said
        newest = read_state(checkpoints(place / "run")[-1]).publishing
        assert newest is not None
        until(lambda: served(server) == newest["published"][-1][0], "the newest snapshot is not served")
    finally:
        server.close()
        producer.join()
    report = followed(undisturbed, url)
    assert report.rows == trained_rows(place) == ROUNDS * NEWER_ROWS
    found = trained_state(config, report)
    stormy = followed(place, url)
    assert stormy.steps == report.steps
    assert trained_state(config, stormy) == found
    check_published(place, config)
