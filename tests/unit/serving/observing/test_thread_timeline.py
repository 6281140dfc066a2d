"""The timeline of observed requests: slices of each thread are nested, and what waits is counted."""

from __future__ import annotations

import time
from typing import Any

from serving._front import BatchStages, KeptRequest, Observer
from serving.observing.stage_times import STAGE_ORDER, stage_ns
from serving.observing.timeline import timeline
from tests.support.observer_notes import note, settings
from tests.unit.serving.observing.test_observer import MS


def batch(begun_ns: int, session: str, requests: int) -> BatchStages:
    first, second, third, fourth = (begun_ns + passed * MS for passed in (1, 2, 4, 5))
    return BatchStages(session, begun_ns, first, second, third, fourth, MS, 3 * requests, requests, 0, 0, 5, 2, 0, 0)


def observed(began_ns: int) -> list[KeptRequest]:
    """Returns two requests of one batch, one of another session, and one that was refused."""
    observer = Observer(0, 10)
    observer.set(**settings(keeps_all=True))
    first, second = batch(began_ns + 3 * MS, "m/1#0", 2), batch(began_ns + 4 * MS, "m/1#1", 1)
    for number, stages in ((1, first), (2, first), (3, second)):
        arrived = began_ns + number * MS // 2
        note(observer, model="m", id=str(number), arrived_ns=arrived, queued_ns=arrived + 1000, rows=3, stages=stages)
    note(observer, is_grpc=True, model="m", status=8, arrived_ns=began_ns)
    return observer.take(0.0)[1]


def test_every_stage_has_its_time() -> None:
    first, *_, refused = observed(time.monotonic_ns() - 20 * MS)
    times = stage_ns(first)
    assert list(times) == [name for name in STAGE_ORDER if name != "infer"]
    assert times | {"encode": 0} == {
        "read": 1000,
        "queue": 3 * MS - MS // 2 - 1000,
        "join": MS,
        "features": MS,
        "lookup": 2 * MS,
        "ssd": MS,
        "graph": MS,
        "encode": 0,
    }
    assert sum(times.values()) - times["ssd"] == first.ended_ns - first.arrived_ns
    assert stage_ns(refused) == {}


def test_threads_are_rows_and_requests_lie_beside_them() -> None:
    began_ns = time.monotonic_ns() - 20 * MS
    content = timeline(observed(began_ns), began_ns, is_whole=True, version="1.2")
    events: list[dict[str, Any]] = content["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == ["front end http", "front end grpc", "m/1#0", "m/1#1"]
    slices = [event for event in events if event["ph"] == "X"]
    batches = [event for event in slices if event["name"] == "batch"]
    assert [(names[event["tid"]], event["args"]["requests"], event["ts"]) for event in batches] == [
        ("m/1#0", 2, 3000.0),
        ("m/1#1", 1, 4000.0),
    ]
    for event in slices:
        around = [each for each in batches if each["tid"] == event["tid"]]
        assert any(
            each["ts"] <= event["ts"] and event["ts"] + event["dur"] <= each["ts"] + each["dur"] for each in around
        )
    begun = [event for event in events if event["ph"] == "b" and event["name"] == "infer"]
    assert len(begun) == 4
    assert sum(event["ph"] == "e" for event in events) == sum(event["ph"] == "b" for event in events)
    waiting = [event["args"]["requests"] for event in events if event["ph"] == "C"]
    assert max(waiting) == 3
    assert waiting[-1] == 0
    assert content["otherData"] == {"server": "emberline 1.2", "requests": 4, "is_whole": True}
