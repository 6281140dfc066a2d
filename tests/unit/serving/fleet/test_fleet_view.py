"""Shows of replicas that say themselves what they serve whether they are behind."""

from __future__ import annotations

import time
from typing import Any

import pytest

from serving.fleet.peers import Health
from serving.fleet.reading import Reading
from serving.fleet.view import fleet_view
from storage.objects.fleet import Lease, Replica
from storage.objects.head import Head
from storage.objects.served import Served

OLD, NEW = "a" * 32, "b" * 32


def row(
    health: Health, said: str | None, *, ago_s: float = 60.0, error: str = "", wrote: str = OLD, served: str = NEW
) -> dict[str, Any]:
    """Returns what is shown of a replica. ago_s: since when all should serve NEW. wrote: what its object says."""
    now = time.time_ns() // 1_000_000
    head = Head(served=Served(epoch=3, snapshot=served, commit_at_unix_ms=max(0, now - round(ago_s * 1000))))
    replica = Replica(id="two", url="http://two", wake="w" * 16, served=wrote, unix_ms=now)
    reading = Reading("s3://bucket/ranker", Lease(), [replica], None, now, now, error)
    view: Any = fleet_view("ranker", head, reading, {"two": health}, {} if said is None else {"two": said})
    (found,) = view["replicas"]
    return {"serves": found["serves"] and found["serves"]["id"], "behind": found["behind"]}


@pytest.mark.parametrize(
    ("health", "said", "shown", "behind"),
    [
        ("ready", NEW, NEW, False),
        ("ready", OLD, OLD, True),
        ("unready", OLD, OLD, False),
        ("ready", None, NEW, False),
        ("gone", None, OLD, False),
    ],
)
def test_a_replica_that_answers_with_something_else_is_behind(
    health: Health, said: str | None, shown: str, behind: bool
) -> None:
    assert row(health, said) == {"serves": shown, "behind": behind}


def test_nobody_is_behind_before_the_time_of_a_switch() -> None:
    assert row("ready", OLD, ago_s=-0.3) == {"serves": OLD, "behind": False}
    assert row("ready", OLD, ago_s=0.2) == {"serves": OLD, "behind": False}
    assert row("ready", OLD, ago_s=1.0) == {"serves": OLD, "behind": True}


def test_nobody_is_behind_in_a_fleet_that_serves_nothing_so_far() -> None:
    assert row("ready", OLD, served="") == {"serves": OLD, "behind": False}


def test_what_a_ready_replica_serves_is_not_known_where_the_store_does_not_answer_and_it_does_not_say() -> None:
    assert row("ready", None, error="503") == {"serves": None, "behind": False}
    assert row("ready", OLD, error="503") == {"serves": OLD, "behind": True}
