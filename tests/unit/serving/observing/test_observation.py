"""Timelines end with the server, and say when requests are missing in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving._front import Observer
from serving.config import ServerConfig
from serving.observing import observation as observation_module
from serving.observing.line_file import LineFile
from serving.observing.observation import Observation
from serving.observing.watchers import WATCHERS
from storage.errors import Unavailable
from tests.support.observer_notes import note

LIMIT_S = 20.0


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def observers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "emberline-observer"]


@pytest.mark.parametrize("has_log", [False, True])
def test_a_timeline_ends_when_the_server_stops_and_leaves_no_thread(tmp_path: Path, has_log: bool) -> None:
    log = tmp_path / "access.log" if has_log else None
    others, is_watched = observers(), WATCHERS.is_on
    observation = Observation(ServerConfig(model_repository=tmp_path, access_log=log))
    observation.start()
    with ThreadPoolExecutor() as pool:
        recorded = pool.submit(observation.record_timeline, 60.0)
        until(lambda: observation._timeline is not None and len(observers()) > len(others))
        observation.close()
        with pytest.raises(Unavailable, match="the server is shutting down"):
            recorded.result(LIMIT_S)
    with pytest.raises(Unavailable, match="the server is shutting down"):
        observation.record_timeline(0.01)
    # A thread that began after the end would turn round without a wait, for ever.
    until(lambda: all(thread in others for thread in observers()))
    assert WATCHERS.is_on == is_watched


def timeline_with(tmp_path: Path, count: int) -> dict[str, Any]:
    observation = Observation(ServerConfig(model_repository=tmp_path))
    observation.native = Observer(0, 8)
    observation.start()
    try:
        with ThreadPoolExecutor() as pool:
            recorded = pool.submit(observation.record_timeline, 0.5)
            until(lambda: observation.native.is_on)
            for _ in range(count):
                note(observation.native)
            told: dict[str, Any] = recorded.result(LIMIT_S)["otherData"]
            return told
    finally:
        observation.close()


def test_a_timeline_says_whether_requests_were_dropped_before_it_got_them(tmp_path: Path) -> None:
    assert timeline_with(tmp_path, 2)["is_whole"]
    told = timeline_with(tmp_path, 500)
    assert told["requests"] < 500
    assert not told["is_whole"]


def test_a_log_that_is_stuck_does_not_keep_a_server_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observation_module, "_END_S", 0.05)
    began, ends = threading.Event(), threading.Event()

    def write(self: LineFile, lines: bytes) -> bool:
        began.set()
        return ends.wait(LIMIT_S)

    monkeypatch.setattr(LineFile, "write", write)
    others = observers()
    observation = Observation(ServerConfig(model_repository=tmp_path, access_log=tmp_path / "access.log"))
    observation.start()
    note(observation.native)
    assert began.wait(LIMIT_S)
    observation.close()
    assert not ends.is_set()
    assert "the last lines of the access log could not be written" in caplog.text
    ends.set()
    until(lambda: len(observers()) == len(others))
