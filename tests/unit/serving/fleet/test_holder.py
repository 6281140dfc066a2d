"""When the holder of the lease commits for all, and when it waits or names the next snapshot."""

from __future__ import annotations

import pytest

from serving.fleet.holder import WAIT_S, Verdict, judge
from serving.fleet.peers import Health
from storage.objects.fleet import Replica
from storage.objects.head import DeltaObject, Head, VersionObject
from storage.objects.served import Served

IDS = [f"{number:032x}" for number in range(1, 8)]


def head_of(**served: object) -> Head:
    """Returns version 1 with six deltas, of which the first is served."""
    deltas = tuple(
        DeltaObject(sequence=number, snapshot=IDS[number], manifest="0" * 64, from_sequence=number - 1, bytes=1)
        for number in range(1, 7)
    )
    version = VersionObject(version=1, snapshot=IDS[0], manifest="0" * 64, bytes=1, deltas=deltas)
    return Head(versions=(version,), served=Served(**{"epoch": 5, "snapshot": IDS[1], **served}))  # type: ignore[arg-type]


def verdict(
    *replicas: Replica,
    head: Head | None = None,
    health: dict[str, Health] | None = None,
    waited_s: float = 1.0,
    max_unavailable: int = 1,
) -> Verdict:
    own = Replica(id="own", staged=IDS[2])
    return judge(
        head or head_of(),
        IDS[2],
        [own, *replicas],
        {"own": "ready", **(health or {})},
        waited_s=waited_s,
        max_unavailable=max_unavailable,
    )


def test_it_commits_when_all_have_staged_it() -> None:
    assert verdict() == Verdict("commit", IDS[2])
    assert verdict(Replica(id="a", staged=IDS[2]), Replica(id="b", staged=IDS[2])).action == "commit"


@pytest.mark.parametrize("health", ["ready", "unknown"])
def test_it_waits_for_whoever_may_answer_requests(health: Health) -> None:
    found = verdict(Replica(id="a"), health={"a": health})
    assert found == Verdict("wait", IDS[2], "a has not staged it")


@pytest.mark.parametrize("health", ["unready", "gone"])
def test_it_does_not_wait_for_those_that_answer_none(health: Health) -> None:
    assert verdict(Replica(id="a"), health={"a": health}).action == "commit"


def test_some_may_be_left_behind_once_they_say_why_or_stay_silent() -> None:
    late = [Replica(id="a", trouble="its disk is full"), Replica(id="b")]
    assert verdict(late[0], health={"a": "ready"}) == Verdict("commit", IDS[2], "left behind: a its disk is full")
    assert verdict(late[0], health={"a": "ready"}, max_unavailable=0).action == "wait"
    assert verdict(late[1], health={"b": "ready"}, waited_s=WAIT_S - 1).action == "wait"
    assert verdict(late[1], health={"b": "ready"}, waited_s=WAIT_S + 1).action == "commit"
    assert verdict(*late, health={"a": "ready", "b": "ready"}, waited_s=WAIT_S + 1).action == "wait"


def test_the_newest_is_named_where_they_have_staged_different_ones() -> None:
    other = Replica(id="a", staged=IDS[4])
    found = verdict(other, health={"a": "ready"})
    assert (found.action, found.snapshot) == ("name", IDS[4])
    # Once it is named, the holder waits, or has given its own up.
    assert verdict(other, health={"a": "ready"}, head=head_of(next=IDS[4])).action == "wait"


@pytest.mark.parametrize(
    "served", [{"snapshot": IDS[4]}, {"held": (IDS[4],)}, {"abandoned": (IDS[4],)}, {"refused": {IDS[4]: ("b: no",)}}]
)
def test_what_a_dead_replica_staged_long_ago_is_no_candidate(served: dict[str, object]) -> None:
    head = head_of(**served)
    assert judge(
        head,
        IDS[5],
        [Replica(id="own", staged=IDS[5]), Replica(id="a", staged=IDS[4])],
        {"a": "unknown"},
        waited_s=1.0,
        max_unavailable=1,
    ) == Verdict("wait", IDS[5], "a has not staged it")
