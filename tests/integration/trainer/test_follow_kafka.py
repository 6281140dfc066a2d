"""Training on a topic of Kafka: a run that is killed has the weights of one that nothing interrupted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from tests.integration.trainer.follow_runs import followed, killed, trained_state
from tests.integration.trainer.update_runs import NEWER_ROWS, check_published
from tests.support.kafka_brokers import KafkaBrokers
from trainer.config import TrainConfig


def send(brokers: KafkaBrokers, newer: Path) -> None:
    """Appends rows of a file to three partitions, as messages of 10 rows."""
    table = pq.read_table(newer)
    for number, start in enumerate(range(0, table.num_rows, 10)):
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(start, 10))
        brokers.send("clicks", [bytes(sink.getvalue())], number % 3)


@pytest.mark.long
@pytest.mark.slow
def test_no_message_is_lost_or_used_twice_when_it_is_killed(
    place: Path, finished: Path, newer: Path, config: TrainConfig, tmp_path: Path
) -> None:
    brokers = KafkaBrokers()
    send(brokers, newer)
    url = f"kafka://{brokers.servers}/clicks"
    shutil.copytree(finished, tmp_path / "other")
    undisturbed = followed(tmp_path / "other", url)
    for step, times in (("take", 6), ("write", 1), ("take", 3)):
        killed(place, url, step, times)
    report = followed(place, url)
    assert report.rows == undisturbed.rows == NEWER_ROWS
    assert trained_state(config, report) == trained_state(config, undisturbed)
    check_published(place, config)
    assert report.followed is not None
    assert (report.followed.waiting, report.followed.unit) == (0, "messages")
