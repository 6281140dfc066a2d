"""The observer: what is noted becomes a line, is kept, or is dropped and counted."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from serving._front import BatchStages, Observer
from tests.support.observer_notes import note, settings

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MS = 1_000_000


def stages(begun_ns: int) -> BatchStages:
    first, second, third, fourth = (begun_ns + passed * MS for passed in (1, 3, 6, 10))
    return BatchStages("m/1#0", begun_ns, first, second, third, fourth, 2 * MS, 7, 2, 0, 1, 5, 3, 2, 0)


def test_nothing_is_noted_unless_it_is_asked_for() -> None:
    observer = Observer(1000, 10)
    assert not observer.is_on
    note(observer)
    assert observer.take(0.0) == (b"", [])


def test_a_line_of_json_has_what_is_known() -> None:
    observer = Observer(10_000, 10)
    observer.set(**settings(has_lines=True))
    assert observer.is_on
    begun = time.monotonic_ns() - 20 * MS
    note(
        observer,
        model="m",
        version="3",
        snapshot="3.17",
        id='a"\n\\',
        header_id="edge",
        address="::1",
        principal="ann",
        rows=4,
        arrived_ns=begun - 5 * MS,
        queued_ns=begun - 4 * MS,
        stages=stages(begun),
    )
    note(observer, status=404, error="there is no model 'é'")
    first, second = [json.loads(line) for line in observer.take(0.0)[0].decode().splitlines()]
    assert first.pop("time").endswith("Z")
    assert first.pop("ms") >= 25
    assert first.pop("encode_ms") >= 10
    assert first == {
        "logger": "emberline.access",
        "transport": "http",
        "address": "::1",
        "principal": "ann",
        "call": "infer",
        "model": "m",
        "version": "3",
        "snapshot": "3.17",
        "id": 'a"\n\\',
        "x_request_id": "edge",
        "status": 200,
        "rows": 4,
        "request_bytes": 10,
        "response_bytes": 20,
        "queue_ms": 4.0,
        "join_ms": 1.0,
        "features_ms": 2.0,
        "lookup_ms": 3.0,
        "ssd_ms": 2.0,
        "graph_ms": 4.0,
        "batch_rows": 7,
    }
    assert second["error"] == "there is no model 'é'"
    assert "rows" not in second


def test_a_line_of_text_has_the_same_names() -> None:
    observer = Observer(10_000, 10)
    observer.set(**settings(has_lines=True, is_json=False))
    note(observer, model="m", id="a b", status=504, error="too=late")
    line = observer.take(0.0)[0].decode()
    assert 'transport=http call=infer model=m id="a b" status=504' in line
    assert line.endswith('error="too=late"\n')
    assert line.count("\n") == 1


def test_what_finds_no_room_is_dropped_and_counted() -> None:
    observer = Observer(400, 2)
    observer.set(**settings(has_lines=True, keeps_all=True))
    for _ in range(5):
        note(observer)
    lines, kept = observer.take(0.0)
    assert 0 < lines.count(b"\n") < 5
    assert len(kept) == 2
    assert (observer.dropped_lines, observer.dropped_requests) == (5 - lines.count(b"\n"), 3)


def test_slow_requests_are_kept() -> None:
    observer = Observer(0, 10)
    observer.set(**settings(slow_ns=50 * MS))
    now = time.monotonic_ns()
    note(observer, id="fast")
    note(observer, id="slow", arrived_ns=now - 60 * MS)
    ((_, kept)) = observer.take(0.0)
    assert [(each.id, each.is_slow, each.is_sampled, each.stages) for each in kept] == [("slow", True, False, None)]


@pytest.mark.parametrize(
    ("traceparent", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"cc-{TRACE}-{SPAN}-01-later", True),
    ],
)
def test_a_caller_decides_whether_its_request_is_traced(traceparent: str, sampled: bool) -> None:
    observer = Observer(0, 10)
    observer.set(**settings(is_tracing=True, sampling=0.0 if sampled else 1.0))
    note(observer, traceparent=traceparent)
    kept = observer.take(0.0)[1]
    assert [(each.trace_id, each.parent_id) for each in kept] == ([(TRACE, SPAN)] if sampled else [])


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-later",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00.{TRACE}.{SPAN}.01",
    ],
)
def test_what_is_no_traceparent_counts_as_none(traceparent: str) -> None:
    observer = Observer(0, 10)
    observer.set(**settings(is_tracing=True, sampling=1.0))
    note(observer, traceparent=traceparent)
    (kept,) = observer.take(0.0)[1]
    assert len(kept.trace_id) == 32
    assert kept.trace_id != TRACE
    assert kept.parent_id == ""


def test_requests_are_drawn_and_others_are_not() -> None:
    observer = Observer(0, 100_000)
    observer.set(**settings(is_tracing=True, sampling=0.1))
    for _ in range(20_000):
        note(observer)
    kept = observer.take(0.0)[1]
    assert 1500 < len(kept) < 2500
    assert len({each.trace_id for each in kept}) == len(kept)
    note(observer, is_traceable=False, traceparent=f"00-{TRACE}-{SPAN}-01")
    assert observer.take(0.0)[1] == []


def test_threads_note_at_the_same_time_and_a_taker_gets_everything() -> None:
    observer = Observer(64 << 20, 100_000)
    observer.set(**settings(has_lines=True, keeps_all=True))
    threads = [threading.Thread(target=lambda: [note(observer) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    lines = kept = 0
    while kept < 8000:
        found, requests = observer.take(5.0 if any(thread.is_alive() for thread in threads) else 0.0)
        lines, kept = lines + found.count(b"\n"), kept + len(requests)
        assert found or requests
    for thread in threads:
        thread.join()
    assert (lines, kept) == (8000, 8000)


def test_stop_ends_a_wait() -> None:
    observer = Observer(1000, 10)
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(observer.take(60.0)))
    thread.start()
    observer.stop()
    thread.join(30)
    assert taken == [(b"", [])]
