"""A few trials of a fleet behind HAProxy; `python -m tests.faults.fleet` has more of them, and longer ones."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.peers import PeerMissingError
from tests.faults.fleet.clients import Clients, Seen
from tests.faults.fleet.measures import skew_s
from tests.faults.fleet.replicas import Fleet, fleet, has_fleet_mode
from tests.faults.fleet.trials import fault_of, one
from tests.support.balancer import QUICK
from tests.support.proxies import fetch

SCENARIOS = ["kill_stager", "kill_child", "kill_publisher", "two_publishers"]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    try:
        fetch()
    except PeerMissingError as error:
        pytest.skip(f"HAProxy cannot be had: {error}")
    with fleet(tmp_path_factory.mktemp("fleet"), changes=QUICK) as running:
        yield running


@pytest.mark.parametrize("scenario", [*SCENARIOS, *(["rollback"] if has_fleet_mode() else [])])
def test_a_fault_fails_no_request_and_the_fleet_goes_on(three: Fleet, scenario: str) -> None:
    with Clients(three).behind_the_balancer() as clients:
        trial = one(scenario, 0, three, clients, fault_of(scenario, 1.0), np.random.default_rng(3))
    assert not trial.violations, trial.line()
    assert trial.answers > 50


def test_a_wrong_answer_and_a_failed_request_are_found(three: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    true = three.snapshots[three.newest.id]
    with Clients(three).behind_the_balancer(http=1, grpc=1) as clients:
        other = next(each for each in three.snapshots.values() if each.generation != true.generation)
        three.snapshots[true.id] = other
        time.sleep(0.3)
        three.snapshots[true.id] = true
        wrong = clients.take().wrong
    assert wrong
    assert f"an answer of {other.name} is that of" in wrong[0]
    with Clients(three).behind_the_balancer(http=1, grpc=0) as clients:
        monkeypatch.setattr("tests.faults.fleet.clients.PATH", "/v2/models/nothing/infer")
        time.sleep(0.3)
        failed = clients.take().failed
    assert "404" in failed[0]


def test_the_skew_is_from_the_first_new_answer_to_the_last_old_one() -> None:
    places = {"a": 0, "b": 1, "c": 2}
    seen = Seen()
    seen.first = {"one": {"a": 0.0, "b": 5.0}, "two": {"a": 0.1, "c": 5.2}}
    seen.last = {"one": {"a": 4.9, "b": 9.0}, "two": {"a": 5.1, "c": 9.0}}
    assert skew_s(seen, places, "b") == pytest.approx(0.1)
    assert skew_s(seen, places, "c") == pytest.approx(3.8)
    seen.last["two"]["a"] = 4.8
    assert skew_s(seen, places, "b") == 0.0
