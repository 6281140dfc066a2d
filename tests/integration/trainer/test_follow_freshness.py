"""The times of events on their way through the trainer: in manifests, reports, lines, tracks and metrics."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import open_version
from storage.checkpoint import list_deltas, open_delta
from storage.checkpoint.event_times import EventTimes
from storage.errors import ConfigError
from tests.integration.trainer.follow_runs import followed, killed
from tests.integration.trainer.test_tracking import scalars
from tests.integration.trainer.update_runs import POLICY
from trainer import follow_pass, load_trained
from trainer.config import TrainConfig

Written = tuple[Path, np.ndarray[Any, Any]]


@pytest.fixture
def timed(place: Path, config: TrainConfig) -> Path:
    """Makes the run one that reads the times of its rows."""
    training = config.training.model_copy(update={"time_column": "at"})
    # The third and sixth delta of a version are cumulative, and the fifth is followed by a version.
    publish = POLICY.model_copy(update={"delta_every_steps": 2, "version_every_deltas": 5})
    changed = config.model_copy(update={"training": training, "publish": publish})
    (place / "run" / "config.json").write_text(changed.model_dump_json())
    return place


@pytest.fixture
def stream(newer: Path, tmp_path: Path) -> Written:
    """Writes rows as files, with the second of each event; returns the folder and the times in milliseconds."""
    folder = tmp_path / "stream"
    folder.mkdir()
    table = pq.read_table(newer)
    at = time.time() - 400 + np.arange(table.num_rows) / 4 + np.random.default_rng(0).normal(size=table.num_rows)
    table = table.append_column("at", pa.array(at))
    for start in range(0, table.num_rows, 400):
        pq.write_table(table.slice(start, 400), folder / f"{start:06d}.parquet")
    return folder, (at * 1000).astype(np.int64)


def published_events(place: Path) -> list[tuple[str, EventTimes | None]]:
    """Returns the events of all that was published after version 1, in the order of publication."""
    found = []
    for number in (1, 2):
        version = open_version(place / "models" / "clicks" / str(number))
        if number > 1:
            found.append(("version", version.manifest.events))
        for sequence in list_deltas(version.path):
            delta = open_delta(version.path / "deltas" / f"{sequence:06d}")
            found.append(("cumulative" if delta.manifest.cumulative else "delta", delta.manifest.events))
    return found


@pytest.mark.long
@pytest.mark.slow
def test_every_manifest_has_the_times_of_the_rows_that_it_covers_also_after_a_kill(
    timed: Path, stream: Written
) -> None:
    folder, times = stream
    killed(timed, folder, "write", 2)
    killed(timed, folder, "take", 4)
    followed(timed, folder)
    covered = [(0, 256), (256, 512), (0, 768), (768, 1024), (1024, 1280), (0, 1280), (1280, 1536), (1536, 1600)]
    kinds = ["cumulative", "delta", "cumulative", "delta", "delta", "version", "cumulative", "delta"]
    found = published_events(timed)
    assert [kind for kind, _ in found] == kinds
    for (_, events), (first, last) in zip(found, covered, strict=True):
        rows = times[first:last]
        assert events is not None
        assert (events.rows, events.oldest_unix_ms, events.newest_unix_ms) == (last - first, rows.min(), rows.max())
        assert events.until(np.median(rows)) == pytest.approx((last - first) / 2, rel=0.05)


def test_the_report_the_line_and_the_track_say_how_old_events_were(
    timed: Path, stream: Written, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow_pass, "_LINE_S", 0.0)
    report = followed(timed, stream[0], progress=True, track="tensorboard")
    assert report.followed is not None
    freshness = report.followed.freshness
    assert {stage: found["events"] for stage, found in freshness.items()} == dict.fromkeys(freshness, 1600)
    ages = [freshness[stage]["p50"] for stage in ("trained", "committed", "published")]
    assert 60 < ages[0] <= 1.02 * ages[1] <= 1.02**2 * ages[2] < 300, "quantiles of counts by age, which are estimates"
    shown = " ".join(capfd.readouterr().err.split())
    assert "files waiting, the newest row is" in shown
    assert "s old, published after" in shown
    track = scalars(timed / "run" / "tensorboard")
    assert len(track["follow/rows_per_second"]) > 1
    assert track["follow/waiting"][-1][1] == 0.0
    assert track["follow/published_seconds_p99"][-1][1] == pytest.approx(freshness["published"]["p99"], rel=0.2)
    assert '"freshness": {' in (timed / "run" / "update.json").read_text()


def test_prometheus_scrapes_a_training_that_follows(timed: Path, stream: Written) -> None:
    pages: list[str] = []
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]

    def scrape() -> None:
        while not pages:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    page = answer.read().decode()
            except OSError:
                time.sleep(0.01)
                continue
            if 'emberline_trainer_freshness_seconds_count{at="published",model="clicks"} 1536.0' in page:
                pages.append(page)

    thread = threading.Thread(target=scrape)
    thread.start()
    followed(timed, stream[0], until_idle=1.0, metrics_port=port)
    thread.join()
    for line in ('stream_waiting{model="clicks",unit="files"} 0.0', "emberline_trainer_snapshots_published_total"):
        assert line in pages[0]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_a_port_that_is_taken_is_refused(timed: Path, stream: Written) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"metrics_port: 127\.0\.0\.1"):
            followed(timed, stream[0], metrics_port=taken.getsockname()[1])


def test_a_state_that_is_published_by_hand_has_its_events_too(timed: Path, stream: Written) -> None:
    folder, times = stream
    followed(timed, folder, publish=POLICY.model_copy(update={"delta_every_steps": 1000}))
    assert load_trained(timed / "run").publish(timed / "models").name == "2"
    events = open_version(timed / "models" / "clicks" / "2").manifest.events
    assert events is not None
    assert (events.rows, events.newest_unix_ms) == (1600, times.max())
