"""Traces that a collector does not take are given up when the server stops, and counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from serving._front import KeptRequest, Observer
from serving.observing import trace_export
from serving.observing.trace_export import TraceExport
from tests.support.observer_notes import note, settings


class DeafExporter:
    """Sends until it is shut down, as one that repeats what no collector takes."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        self.shutdowns = 0

    def export(self, spans: Any) -> Any:
        self.began.set()
        self.ended.wait(60)
        return SimpleNamespace(name="FAILURE")

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.ended.set()


@pytest.fixture
def request_made() -> Callable[[], KeptRequest]:
    observer = Observer(0, 10)
    observer.set(**settings(keeps_all=True))

    def make() -> KeptRequest:
        note(observer)
        (kept,) = observer.take(0.0)[1]
        return kept

    return make


def test_the_thread_ends_with_the_server_and_what_waits_is_counted(
    request_made: Callable[[], KeptRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_export, "_STOP_S", 0.05)
    monkeypatch.setattr(trace_export, "_WAIT_S", 0.01)
    exporter: Any = DeafExporter()
    traces = TraceExport(exporter, lambda request: [])
    traces.offer(request_made())
    assert exporter.began.wait(30)
    for _ in range(3):
        traces.offer(request_made())
    traces.stop()
    traces._thread.join(30)
    assert not traces._thread.is_alive()
    assert (traces.exported, traces.dropped, exporter.shutdowns) == (0, 4, 1)
