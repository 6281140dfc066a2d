"""Replicas that serve one snapshot: they switch together, refuse together, and obey what any of them is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import GuardError
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.planted import NAME


@pytest.fixture
def replicas(store_url: str, tmp_path: Path) -> Iterator[Replicas]:
    replicas = Replicas(store_url, tmp_path)
    yield replicas
    replicas.stop()


def test_replicas_switch_together(replicas: Replicas) -> None:
    line = replicas.serve("one", "two", "three", deltas=5)
    second = replicas.put(replicas.world.publish())
    replicas.reach(second)
    served = replicas.model.head().served
    assert (served.snapshot, served.previous, served.held, served.refused) == (second.id, line[-1].id, (), {})


def test_an_order_holds_for_all_and_for_those_that_come_later(replicas: Replicas) -> None:
    line = replicas.serve("one", "two", deltas=3)
    replicas.servers["two"].repository.rollback(NAME)
    replicas.reach(line[2])
    assert [replicas.report(name)["mode"] for name in ("one", "two")] == ["held", "held"]

    # It has to go another way than the others, which have both snapshots.
    replicas.start("three")
    replicas.reach(line[2])
    assert replicas.report("three")["mode"] == "held"

    replicas.servers["one"].repository.pin(NAME)
    replicas.until(lambda: [replicas.report(name)["mode"] for name in replicas.servers] == ["pinned"] * 3)
    replicas.stop("two")
    replicas.start("two")
    replicas.reach(line[2])
    assert replicas.report("two")["mode"] == "pinned"
    late = replicas.put(replicas.world.change(line[2]))
    time.sleep(1.5)
    replicas.reach(line[2])

    replicas.servers["three"].repository.resume(NAME)
    replicas.reach(late)


def canary_of(replicas: Replicas, name: str) -> str:
    canary = replicas.report(name)["canary"]
    return "" if canary is None else str(canary["id"])


def test_one_replica_refuses_for_all(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = replicas.serve("one", "two", "three")
    judge = replicas.servers["two"].repository._models[NAME].model
    original = judge.step

    def refuse(step: str) -> None:
        if step == "validated":
            raise GuardError("the scores of recent requests moved too far")
        original(step)

    monkeypatch.setattr(judge, "step", refuse)
    bad = replicas.put(replicas.world.change(first))
    replicas.until(lambda: bad.id in replicas.model.head().served.refused)
    assert replicas.model.head().served.refused[bad.id] == ("two: the scores of recent requests moved too far",)
    monkeypatch.undo()
    replicas.until(lambda: all("two: the scores" in str(replicas.report(name)) for name in ("one", "three")))
    replicas.reach(first)
    good = replicas.put(replicas.world.change(first))
    replicas.reach(good)
    view: Any = replicas.servers["three"].repository.fleet_view(NAME)
    assert [entry["reasons"] for entry in view["refused"]] == [["two: the scores of recent requests moved too far"]]
    assert view["served"] == {"id": good.id, "name": "1.2"}
    assert [entry["health"] for entry in view["replicas"]] == ["ready"] * 3


def test_a_canary_runs_at_all_replicas(replicas: Replicas) -> None:
    (first,) = replicas.serve("one", "two")
    replicas.servers["one"].repository.canary(NAME, fraction=0.5)
    trial = replicas.put(replicas.world.change(first))
    replicas.until(lambda: all(canary_of(replicas, name) == trial.id for name in replicas.servers))
    replicas.start("three")
    replicas.until(lambda: canary_of(replicas, "three") == trial.id)
    replicas.servers["two"].repository.promote(NAME)
    replicas.reach(trial)
    assert replicas.report("three")["canary"] is None


def test_a_replica_that_is_gone_is_not_waited_for(replicas: Replicas) -> None:
    (first,) = replicas.serve("one", "two")
    before = replicas.objects.replicas()
    replicas.stop("one")
    assert [each.id for each in replicas.objects.replicas()] == ["two"]
    for each in before:
        replicas.objects.report(each)  # as if it had been killed
    second = replicas.put(replicas.world.change(first))
    began = time.monotonic()
    replicas.reach(second)
    assert time.monotonic() - began < 10


def test_a_replica_without_the_snapshot_that_others_go_back_to_is_loaded_anew(replicas: Replicas) -> None:
    _, second = replicas.serve("one", "two", deltas=1)
    third = replicas.put(replicas.world.publish(equals=second))
    replicas.reach(third)
    replicas.start("late")
    replicas.reach(third)
    assert [entry["name"] for entry in replicas.report("late")["snapshots"]] == ["2.0"]

    replicas.servers["one"].repository.rollback(NAME)
    replicas.reach(second, "one", "two")
    replicas.until(lambda: not replicas.servers["late"].repository.is_ready())
    replicas.reach(second)
    fourth = replicas.put(replicas.world.change(second))
    replicas.reach(fourth)


def test_a_pointer_that_was_lost_is_set_again(replicas: Replicas) -> None:
    (first,) = replicas.serve("one", "two")
    second = replicas.put(replicas.world.change(first))
    before = replicas.model.head()
    replicas.reach(second)
    # The object store forgets who committed, or somebody deletes head.json and brings it back from a copy.
    replicas.model.update(lambda head: head.model_copy(update={"served": before.served}))
    replicas.until(lambda: replicas.model.head().served.snapshot == second.id)
    replicas.reach(second)
