"""Tests orders, refusals and replicas that meet at a bad moment. The store is a folder, so it is fast."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.fleet.member import FleetMember
from storage.errors import GuardError, StoreError, Unavailable
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.planted import NAME


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    replicas = Replicas(f"file://{tmp_path}/bucket", tmp_path)
    yield replicas
    replicas.stop()


def canary_of(replicas: Replicas, name: str) -> str:
    canary = replicas.report(name)["canary"]
    return "" if canary is None else str(canary["id"])


def test_resume_has_the_replica_that_refused_judge_again(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = replicas.serve("one", "two")
    model = replicas.servers["two"].repository._models[NAME].model
    original = model.step
    judged = 0

    def refuse(step: str) -> None:
        nonlocal judged
        if step == "validated":
            judged += 1
            raise GuardError("the scores of recent requests moved too far")
        original(step)

    monkeypatch.setattr(model, "step", refuse)
    bad = replicas.put(replicas.world.change(first))
    replicas.until(lambda: bad.id in replicas.model.head().served.refused)
    replicas.servers["one"].repository.resume(NAME)
    replicas.until(lambda: judged == 2)
    replicas.until(lambda: bad.id in replicas.model.head().served.refused)
    monkeypatch.undo()
    replicas.servers["one"].repository.resume(NAME)
    replicas.reach(bad)


def hold_back(replicas: Replicas, name: str, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes a replica judge nothing that it has staged until the event is set."""
    model = replicas.servers[name].repository._models[NAME].model
    original, may_judge = model.step, threading.Event()

    def wait(step: str) -> None:
        original(step)
        if step == "staged":
            assert may_judge.wait(20)

    monkeypatch.setattr(model, "step", wait)
    return may_judge


def member_of(replicas: Replicas, name: str) -> FleetMember:
    fleet = replicas.servers[name].repository.fleet
    member = None if fleet is None else fleet.member(NAME)
    assert member is not None
    return member


def test_an_order_that_comes_while_a_snapshot_waits_is_kept(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = replicas.serve("one", "two")
    may_judge = hold_back(replicas, "two", monkeypatch)
    trial = replicas.put(replicas.world.change(first))
    replicas.until(lambda: any(each.staged == trial.id for each in replicas.objects.replicas()))
    replicas.servers["two"].repository.canary(NAME, fraction=0.5)
    replicas.until(lambda: member_of(replicas, "one").served.canary is not None)
    may_judge.set()
    replicas.until(lambda: all(canary_of(replicas, name) == trial.id for name in replicas.servers))
    assert [replicas.served(name) for name in replicas.servers] == [first.id] * 2


def test_a_head_that_cannot_be_read_is_not_the_fault_of_what_is_staged(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (first,) = replicas.serve("one", "two")
    may_judge = hold_back(replicas, "two", monkeypatch)
    second = replicas.put(replicas.world.change(first))
    replicas.until(lambda: any(each.staged == second.id for each in replicas.objects.replicas()))
    path = tmp_path / "bucket" / NAME / "head.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"served"', b'"served!"'))
    may_judge.set()
    time.sleep(0.5)
    with pytest.raises(Unavailable, match="served!"):
        replicas.servers["one"].repository.pause(NAME)
    assert all(not replicas.report(name)["quarantined"] for name in replicas.servers)
    path.write_bytes(good)
    replicas.reach(second)


def test_an_order_switches_all_at_one_time_and_an_old_one_is_not_obeyed(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replicas.serve("one", "two", deltas=1)
    replicas.servers["one"].repository.rollback(NAME)
    replicas.reach(first)
    member = member_of(replicas, "one")
    before = member._head
    assert before is not None
    switched = []
    for name in replicas.servers:
        model = replicas.servers[name].repository._models[NAME].model

        def note(step: str, original: Callable[[str], None] = model.step) -> None:
            if step == "switched":
                switched.append(time.time() * 1000)
            original(step)

        monkeypatch.setattr(model, "step", note)
    replicas.servers["one"].repository.resume(NAME)
    replicas.reach(second)
    assert len(switched) == 2
    assert min(switched) >= replicas.model.head().served.commit_at_unix_ms - 5
    member._follow_orders(before)
    assert replicas.served("one") == second.id


def test_an_order_holds_although_one_replica_cannot_record_it(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = replicas.serve("one", "two", deltas=1)

    def fail(state: object) -> None:
        raise StoreError("no space left on device")

    monkeypatch.setattr(replicas.servers["one"].repository._models[NAME].model.file, "write", fail)
    with pytest.raises(Unavailable, match="holds for all replicas, but this one cannot record it"):
        replicas.servers["one"].repository.rollback(NAME)
    replicas.reach(first, "two")
    replicas.until(lambda: not replicas.servers["one"].repository.is_ready())
    monkeypatch.undo()
    replicas.reach(first)


def test_a_time_of_the_switch_that_was_damaged_stops_nobody(replicas: Replicas) -> None:
    first, _ = replicas.serve("one", deltas=1)
    replicas.model.update(
        lambda head: head.model_copy(
            update={"served": head.served.changed(snapshot=first.id, paused=True, commit_at_unix_ms=2**60)}
        )
    )
    replicas.reach(first)


def test_a_replica_that_missed_a_rollback_finds_its_way(replicas: Replicas) -> None:
    line = [replicas.put(replicas.world.publish())]
    replicas.start("one", "two")
    for _ in range(2):
        replicas.reach(line[-1])
        line.append(replicas.put(replicas.world.change(line[-1])))
    replicas.reach(line[-1])
    replicas.stop("two")
    replicas.servers["one"].repository.rollback(NAME)
    replicas.reach(line[1])
    after = replicas.put(replicas.world.change(line[1]))
    replicas.reach(after)
    replicas.start("two")
    replicas.reach(after)


def test_a_pause_leaves_the_other_versions_loaded(replicas: Replicas) -> None:
    replicas.world.configure("version_policy { latest { num_versions: 2 } }")
    replicas.put(replicas.world.publish())
    second = replicas.put(replicas.world.publish())
    replicas.start("one")
    replicas.reach(second)
    repository = replicas.servers["one"].repository
    replicas.until(lambda: repository.is_model_ready(NAME, "1"))
    repository.pause(NAME)
    time.sleep(1.0)
    assert repository.is_model_ready(NAME, "1")
    delta = replicas.put(replicas.world.change(second))
    repository.resume(NAME)
    replicas.reach(delta)
    assert repository.is_model_ready(NAME, "1")


def test_a_replica_that_cannot_bring_a_snapshot_says_so_and_is_left_behind(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = replicas.serve("one", "two")
    mirror = replicas.servers["two"].repository.mirror
    assert mirror is not None

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mirror._mirrors[NAME].mirror, "_bring_folder", fail)
    second = replicas.put(replicas.world.change(first))
    replicas.reach(second, "one")
    replicas.until(lambda: not replicas.servers["two"].repository.is_ready())
    troubles = {each.id: each.trouble for each in replicas.objects.replicas()}
    assert "No space left on device" in troubles["two"]
    monkeypatch.undo()
    replicas.reach(second)


def test_two_servers_of_one_name_are_told(replicas: Replicas, caplog: pytest.LogCaptureFixture) -> None:
    replicas.serve("one")
    replicas.start("other", replica_id="one")
    replicas.until(lambda: "is the replica one too" in caplog.text)


def test_a_replica_that_lacks_what_is_pinned_goes_back_without_a_load(replicas: Replicas) -> None:
    first, second = replicas.serve("one", deltas=1)
    third = replicas.put(replicas.world.change(second, since=first))
    replicas.reach(third)
    replicas.start("late")
    replicas.reach(third)
    replicas.servers["one"].repository.pin(NAME, second.name)
    replicas.reach(second)
    assert [replicas.report(name)["mode"] for name in replicas.servers] == ["pinned"] * 2
    assert replicas.servers["late"].repository.update_counters(NAME).versions_loaded == 1


def test_a_replica_that_lacks_the_canary_ends_it_for_nobody(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = replicas.serve("one")
    replicas.servers["one"].repository.canary(NAME, fraction=0.5)
    trial = replicas.put(replicas.world.change(first))
    replicas.until(lambda: canary_of(replicas, "one") == trial.id)
    monkeypatch.setattr("serving.fleet.member._ORDER_S", 0.1)
    monkeypatch.setattr(replicas.servers["one"].repository._models[NAME].model, "canary_entry", lambda: None)
    with pytest.raises(Unavailable, match="does not have the canary"):
        replicas.servers["one"].repository.stop_canary(NAME)
    monkeypatch.undo()
    assert canary_of(replicas, "one") == trial.id


@pytest.mark.slow  # a replica looks for another way for three seconds first
def test_replicas_go_on_from_what_they_have_where_none_serves_what_all_should(replicas: Replicas) -> None:
    replicas.world.configure(retain_snapshots=1)
    line = [replicas.put(replicas.world.publish())]
    replicas.start("one", "two")
    for _ in range(4):
        replicas.reach(line[-1])
        line.append(replicas.put(replicas.world.change(line[-1])))
    replicas.reach(line[-1])
    replicas.stop()

    # They were servers without a fleet for a while, and followed what was published.
    replicas.model.update(lambda head: head.model_copy(update={"served": head.served.changed(snapshot=line[1].id)}))
    replicas.start("one", "two")
    replicas.reach(line[-1])
    for server in replicas.servers.values():
        assert server.repository.update_counters(NAME).versions_loaded == 0
    replicas.stop()

    # It names what was never published, and pins it.
    nothing = {"snapshot": "0" * 32, "pinned": True}
    replicas.model.update(lambda head: head.model_copy(update={"served": head.served.changed(**nothing)}))
    replicas.start("one", "two")
    replicas.reach(line[-1])
    replicas.until(lambda: [replicas.report(name)["mode"] for name in replicas.servers] == ["pinned"] * 2)
