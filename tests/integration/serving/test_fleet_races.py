"""Tests orders, refusals and replicas that meet at a bad moment. The store is a folder, so it is fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import GuardError
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
    first = replicas.put(replicas.world.publish())
    replicas.start("one", "two")
    replicas.reach(first)
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


def test_an_order_that_comes_while_a_snapshot_waits_is_kept(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replicas.put(replicas.world.publish())
    replicas.start("one", "two")
    replicas.reach(first)
    model = replicas.servers["two"].repository._models[NAME].model
    original, judged = model.step, threading.Event()

    def wait(step: str) -> None:
        original(step)
        if step == "staged":
            assert judged.wait(20)

    monkeypatch.setattr(model, "step", wait)
    trial = replicas.put(replicas.world.change(first))
    fleet = replicas.servers["one"].repository.fleet
    assert fleet is not None
    member = fleet.member(NAME)
    assert member is not None
    replicas.until(member.hurries)
    time.sleep(0.5)
    replicas.servers["two"].repository.canary(NAME, fraction=0.5)
    replicas.until(lambda: member.served.canary is not None)
    judged.set()
    replicas.until(lambda: all(canary_of(replicas, name) == trial.id for name in replicas.servers))
    assert [replicas.served(name) for name in replicas.servers] == [first.id] * 2


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
