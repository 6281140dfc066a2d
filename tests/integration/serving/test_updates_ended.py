"""Tests what ends: versions that were replaced, loads that are given up, requests that wait while the server stops."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.tiers.ssd.tier import SsdTier
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


@pytest.mark.slow
def test_replaced_versions_are_held_neither_by_those_before_them_nor_by_the_log(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # Its handler keeps every record with its arguments.
    live.version()
    live.start()
    first = live.repository.get(NAME)  # Simulates a heap that was frozen at the start.
    gone = []
    for _ in range(2):
        live.reaches(live.version())
        gone.append(weakref.ref(live.repository.get(NAME)))

    def is_gone() -> bool:
        gc.collect()
        return gone[0]() is None

    live.until(is_gone)
    assert first.successor is None
    assert gone[1]() is live.repository.get(NAME)


def test_a_load_that_is_given_up_in_the_middle_is_no_error(
    live: Live, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.version()
    done: list[str] = []

    def log_progress(_: str) -> Callable[..., None]:
        def report(stage: str, table: str, *_: object) -> None:
            done.append(f"{stage} {table}")
            live.repository.stop_loading()

        return report

    monkeypatch.setattr("serving.updates.loading.log_progress", log_progress)
    with caplog.at_level(logging.INFO):
        live.start()
    assert len(done) == 1
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_store_that_fails_to_close_does_not_keep_the_server_from_stopping(
    live: Live, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.version()
    live.start()
    real = SsdTier.close

    def close(tier: SsdTier) -> None:
        real(tier)
        raise StoreError("the disk is full")

    monkeypatch.setattr(SsdTier, "close", close)
    live.repository.close(10)
    assert "the disk is full" in caplog.text


def test_who_waits_for_a_snapshot_is_notified_at_once_when_the_server_stops(tmp_path: Path) -> None:
    with contextlib.ExitStack() as held, Live(tmp_path, min_snapshot_timeout_ms=600_000) as live:
        live.version()
        live.start(drain_timeout_s=300)
        connection = held.enter_context(
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", live.server.http_port))
        )
        body = {"inputs": [{"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [3]}]}
        connection.request("POST", f"/v2/models/{NAME}/infer", json.dumps(body), {"Emberline-Min-Snapshot": "1.7"})
        line = live.repository.get(NAME).history
        live.until(lambda: line._waiters)
        stopper = threading.Thread(target=live.stop)
        stopper.start()
        answer = connection.getresponse()
        assert answer.status == 503
        assert "shutting down" in answer.read().decode()
        stopper.join()
