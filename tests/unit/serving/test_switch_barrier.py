"""No batch begins on the old snapshot after the time of a switch, however late the switching thread is."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from serving.pipeline.snapshot import Snapshot, SnapshotHistory

GRAPH: Any = object()


def snapshot(number: int) -> Snapshot:
    return Snapshot(f"{number:032x}", 1, number, 0, GRAPH, 0, Path())


def test_a_batch_after_the_time_waits_for_the_switch() -> None:
    old, new = snapshot(1), snapshot(2)
    history = SnapshotHistory("model", old)
    got: list[Snapshot] = []
    with history.closed_from(time.monotonic() + 30):
        assert history.acquire() is old  # the time has not come
    with history.closed_from(time.monotonic()):
        batch = threading.Thread(target=lambda: got.append(history.acquire()))
        batch.start()
        batch.join(0.1)
        assert got == []
        history.switch(new)
        batch.join(5)
    assert got == [new]


def test_a_switch_that_does_not_come_lets_them_go_on() -> None:
    old = snapshot(1)
    history = SnapshotHistory("model", old)
    got: list[Snapshot] = []
    with history.closed_from(time.monotonic()):
        batch = threading.Thread(target=lambda: got.append(history.acquire()))
        batch.start()
    batch.join(5)
    assert got == [old]
    assert history.acquire() is old
