"""Several ranks that follow a broker, killed one by one and all at once: each event was trained on once."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import PeerMissingError
from tests.integration.trainer.follow_runs import followed
from tests.integration.trainer.ranks_process import run_ranks
from tests.integration.trainer.test_follow_joined import as_bytes
from tests.integration.trainer.test_ranks import SAME_MODEL
from tests.integration.trainer.update_runs import check_published, restored
from tests.support.kafka_brokers import KafkaBrokers
from tests.support.redis_server import RedisServer, fetch
from tests.support.trainer_process import TrainerProcess
from trainer import load_trained, train
from trainer.checkpoint import checkpoints, read_state
from trainer.config import TrainConfig, parse_text

HISTORY_ROWS, EVENTS, A_MESSAGE = 2000, 4800, 16
_WAIT_S = 120.0
# A softmax follows: this bias changes no score, its gradient is rounding alone, and Adam makes steps of that.
_CANCELS_OUT = "attention.2.bias"


@contextmanager
def redis_stream(folder: Path, events: Any) -> Iterator[str]:
    """Adds events to a stream, and yields its URL."""
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"no redis-server: {error}")
    server = RedisServer(folder)
    try:
        for start in range(0, events.num_rows, A_MESSAGE):
            server.client.xadd("clicks", {"rows": as_bytes(events.slice(start, A_MESSAGE))})
        yield f"redis://127.0.0.1:{server.port}/0?stream=clicks&arrow=rows"
    finally:
        server.stop()


@contextmanager
def kafka_topic(folder: Path, events: Any) -> Iterator[str]:
    """Sends events to three partitions, and yields the URL of their topic."""
    brokers = KafkaBrokers()
    for number, start in enumerate(range(0, events.num_rows, A_MESSAGE)):
        brokers.send("clicks", [as_bytes(events.slice(start, A_MESSAGE))], number % 3)
    yield f"kafka://{brokers.servers}/clicks"


@pytest.fixture(scope="module")
def learned(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainConfig]:
    """Trains on history, without dropout, of which each rank would draw its own."""
    place = tmp_path_factory.mktemp("learned")
    content = SAME_MODEL.replace("epochs: 2", "epochs: 1").replace("every_steps: 50", "every_steps: 4")
    config = parse_text(content + "publish: {version_every_deltas: 0, version_at_share: 0.0, keep_states: 32}\n")
    given = {"output": place / "run", "repository": place / "models", "limit": HISTORY_ROWS, "progress": False}
    train(config, clicks, **given)  # type: ignore[arg-type]
    return place, config


def trained_rows(place: Path) -> int:
    """Returns how many events the newest commit has."""
    return read_state(checkpoints(place / "run")[-1]).position.rows - HISTORY_ROWS


def wait_for(trainer: TrainerProcess, place: Path, rows: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while trained_rows(place) < rows:
        assert trainer.process.poll() is None, trainer.end()
        assert time.monotonic() < deadline, f"{trained_rows(place)} rows of {rows}"
        time.sleep(0.005)


def state_of(config: TrainConfig, place: Path) -> tuple[object, ...]:
    """Returns all that was learned from a stream and where it continues."""
    folder = checkpoints(place / "run")[-1]
    found, content = restored(config, folder)
    found.pop("update")
    return found, content, read_state(folder).streams


def _followed(place: Path, url: str) -> None:
    followed(place, url)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("broker", "kills"),
    [(redis_stream, ("rank 0", "all", "command")), (kafka_topic, ("rank 1", "all"))],
    ids=["redis", "kafka"],
)
def test_ranks_that_are_killed_train_on_each_event_of_a_broker_once(
    learned: tuple[Path, TrainConfig], click_table: Any, tmp_path: Path, broker: Any, kills: tuple[str, ...]
) -> None:
    source, config = learned
    place, two, one = (Path(shutil.copytree(source, tmp_path / name)) for name in ("killed", "two", "one"))
    options = ("--nproc", "2", "--every-steps", "8", "--until-idle", "0.5")
    with broker(tmp_path, click_table(EVENTS, 11)) as url:
        trainer, orphans = TrainerProcess(place, url, *options), []
        for number, victim in enumerate(kills):
            wait_for(trainer, place, 600 + 1000 * number)
            if victim.startswith("rank"):
                pid = trainer.rank(int(victim[-1]))
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                continue
            if victim == "all":
                trainer.kill()
            else:
                # Its ranks learn of its death by a signal, and may still write a commit while others begin.
                trainer.process.kill()
                orphans.append(trainer)
            trainer = TrainerProcess(place, url, *options)
        for each in orphans:
            each.end()
        said = trainer.end()
        assert trainer.process.returncode == 0, said
        assert run_ranks(2, _followed, two, url) == [0, 0]
        followed(one, url)
    assert trained_rows(place) == trained_rows(one) == EVENTS
    assert state_of(config, place) == state_of(config, two)
    check_published(place, config)
    mine, alone = load_trained(place / "run"), load_trained(one / "run")
    for name, table in mine.tables.items():
        ids, rows, *_ = table.export_rows()
        other = alone.tables[name].export_rows()
        np.testing.assert_array_equal(ids, other[0])
        np.testing.assert_allclose(rows, other[1], atol=1e-4)
    weights = alone.model.state_dict()
    for name, value in mine.model.state_dict().items():
        if name == _CANCELS_OUT:
            continue
        np.testing.assert_allclose(value.numpy(), weights[name].numpy(), atol=1e-4, err_msg=name)
