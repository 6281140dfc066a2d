"""Training on a stream of Redis: the weights are those of one pass over a file with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.peers import PeerMissingError
from tests.integration.trainer.follow_runs import followed, killed, trained_state
from tests.integration.trainer.update_runs import check_published
from tests.support.redis_server import RedisServer, fetch
from trainer import UpdateReport
from trainer.config import TrainConfig


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"no redis-server: {error}")
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    yield server
    server.stop()


def add(server: RedisServer, newer: Path, start: int, rows: int) -> None:
    """Adds rows of a file as entries, without the fields that are null."""
    with server.client.pipeline(transaction=False) as calls:
        for row in pq.read_table(newer).slice(start, rows).to_pylist():
            fields = {
                name: "|".join(map(str, value)) if isinstance(value, list) else str(value)
                for name, value in row.items()
                if value is not None
            }
            calls.xadd("clicks", fields)
        calls.execute()


def _text(value: object) -> str:
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


@pytest.mark.long
@pytest.mark.slow
def test_no_entry_is_lost_or_used_twice_when_it_is_killed_while_they_come(
    place: Path, newer: Path, config: TrainConfig, whole: tuple[Path, UpdateReport], server: RedisServer
) -> None:
    url = f"redis://127.0.0.1:{server.port}/0?stream=clicks"
    add(server, newer, 0, 700)
    killed(place, url, "take", 5)
    add(server, newer, 700, 500)
    killed(place, url, "write", 1)
    server.client.xtrim("clicks", maxlen=1200 - 4 * 128, approximate=False)  # what is in the commit of a delta may go
    add(server, newer, 1200, 400)
    report = followed(place, url)
    assert trained_state(config, report) == trained_state(config, whole[1])
    check_published(place, config)
    assert report.followed is not None
    assert (report.followed.stream, report.followed.waiting, report.followed.unit) == (url, 0, "entries")
