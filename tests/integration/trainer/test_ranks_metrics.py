"""The metrics of several ranks that follow a stream: of the rows of all of them, and of the work of each."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.trainer.follow_runs import followed
from tests.integration.trainer.ranks_process import run_ranks
from tests.support.server_process import free_ports
from trainer.config import TrainConfig

Labels = dict[str, str]


def _followed(place: Path, stream: Path, port: int) -> None:
    followed(place, stream, until_idle=1.0, metrics_port=port)


def _samples(page: str) -> dict[str, list[tuple[Labels, float]]]:
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix("emberline_trainer_"), []).append((sample.labels, sample.value))
    return found


@pytest.mark.long
@pytest.mark.slow
def test_metrics_cover_the_rows_of_all_ranks_and_the_work_of_each(
    place: Path, newer: Path, config: TrainConfig, tmp_path: Path
) -> None:
    training = config.training.model_copy(update={"time_column": "at"})
    (place / "run" / "config.json").write_text(config.model_copy(update={"training": training}).model_dump_json())
    table = pq.read_table(newer)
    at = time.time() - 400 + np.arange(table.num_rows) / 4
    (tmp_path / "stream").mkdir()
    pq.write_table(table.append_column("at", pa.array(at)), tmp_path / "stream" / "0.parquet")
    (port,) = free_ports(1)
    pages: list[str] = []
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(0.02):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    pages.append(answer.read().decode())
            except OSError:
                continue

    scraper = threading.Thread(target=scrape)
    scraper.start()
    codes = run_ranks(2, _followed, place, tmp_path / "stream", port)
    ended.set()
    scraper.join()
    assert codes == [0, 0]
    report: dict[str, Any] = json.loads((place / "run" / "update.json").read_text())
    freshness = report["followed"]["freshness"]
    assert {stage: each["events"] for stage, each in freshness.items()} == dict.fromkeys(freshness, 1600)
    found = _samples(next(page for page in reversed(pages) if re.search(r'count\{at="published".* 1536', page)))
    newest = {labels["at"]: value for labels, value in found["newest_event_unix_seconds"]}
    assert newest["published"] == pytest.approx(at[1535], abs=0.002)
    for name in ("rank_steps_total", "rank_work_seconds_total", "rank_exchange_seconds_total"):
        assert sorted(labels["rank"] for labels, _ in found[name]) == ["0", "1"]
        assert all(value > 0.0 for _, value in found[name])
    sent, received = (
        {(labels["rank"], labels["kind"]): value for labels, value in found[f"rank_{what}_bytes_total"]}
        for what in ("sent", "received")
    )
    for kind in ("ids", "rows", "gradients", "data"):
        assert sent["0", kind] == received["1", kind] > 0
    assert ("1", "data") not in sent
    assert sent["0", "dense"] == sent["1", "dense"] > 0
    assert sum(each["steps"] for each in report["profile"]["ranks"]) == 2 * report["steps"]
