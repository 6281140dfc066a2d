"""Replicas judge a canary by the labels of all: each of them answers, and has labels of, a third of the requests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emberline.cli.fleet import command as fleet
from serving.fleet.judging import FleetJudges
from storage.objects.fleet import LEASE
from storage.objects.trials import LABELS, TrialObjects
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.labelling import visit
from tests.integration.serving.planted import NAME, Planted
from tests.support.faulty_proxy import proxy_of_store

NAMES = ("one", "two", "three")
# No replica alone gets as many labels of either arm.
VISITS, MIN_LABELS = 75, 400
TRIALS: dict[str, Any] = {
    "feedback_share": 1,
    "retain_snapshots": 3,
    "live_auc_fraction": 0.5,
    "live_auc_min_labels": MIN_LABELS,
    "live_auc_max_drop": 0.02,
}


@pytest.fixture
def replicas(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    monkeypatch.setattr(FleetJudges, "look_s", 0.5)
    replicas = Replicas(store_url, tmp_path)
    replicas.world.configure(**TRIALS)
    yield replicas
    replicas.stop()


def begin(replicas: Replicas, *names: str) -> tuple[Planted, Planted]:
    """Starts replicas, and publishes a delta, which is the canary of all of them then; returns both snapshots."""
    (first,) = replicas.serve(*names)
    second = replicas.put(replicas.world.change(first))
    for name in names:
        replicas.until(lambda name=name: canary_of(replicas, name) == second.id)  # type: ignore[misc]
        assert replicas.served(name) == first.id
    return first, second


def canary_of(replicas: Replicas, name: str) -> str:
    canary = replicas.report(name)["canary"]
    return "" if canary is None else str(canary["id"])


def verdicts(replicas: Replicas) -> set[str | None]:
    return {(replicas.report(name)["live_auc"] or {}).get("verdict") for name in replicas.servers}


def label(replicas: Replicas, visits: range, before: float, after: float) -> None:
    """Asks the replicas in turn, and tells all of them each label. before, after: skills of 1.0 and of 1.1."""
    servers = list(replicas.servers.values())
    for seed in visits:
        visit(servers[seed % len(servers)], servers, {"1.0": before, "1.1": after}, seed)


def rows_in(reason: str) -> list[int]:
    found = re.search(r"over (\d+) and (\d+) labelled rows", reason)
    assert found is not None, reason
    return [int(each) for each in found.groups()]


def labelled_at(replicas: Replicas, name: str) -> list[int]:
    return [each["rows"] for each in replicas.report(name)["feedback"]["quality"]]


def test_a_good_update_is_served_by_all_for_the_labels_of_all(replicas: Replicas) -> None:
    _, second = begin(replicas, *NAMES)
    replicas.until(lambda: verdicts(replicas) == {"waits"})
    label(replicas, range(VISITS), 0.6, 0.9)
    replicas.reach(second)
    assert all(max(labelled_at(replicas, name)) < MIN_LABELS for name in NAMES)
    replicas.until(lambda: verdicts(replicas) == {"passes"})
    for name in NAMES:
        report = replicas.report(name)["live_auc"]
        assert (report["snapshot"], report["against"]) == ("1.1", "1.0")
        assert min(rows_in(report["reason"])) >= MIN_LABELS
    view: Any = replicas.servers["two"].repository.fleet_view(NAME)
    assert view["live_auc"]["verdict"] == "passes"
    assert view["live_auc"]["by"] in NAMES
    shown = CliRunner().invoke(fleet, [f"{replicas.url}/{NAME}"])
    assert f"trial by live AUC of 1.1, by {view['live_auc']['by']}: passes" in " ".join(shown.output.split())
    # What comes next is judged, too.
    third = replicas.put(replicas.world.change(second))
    replicas.until(lambda: all(canary_of(replicas, name) == third.id for name in NAMES))


@pytest.mark.slow
def test_a_bad_update_is_held_at_all_with_the_reason(replicas: Replicas) -> None:
    first, second = begin(replicas, *NAMES)
    label(replicas, range(VISITS), 0.95, 0.1)
    replicas.until(lambda: all(replicas.report(name)["mode"] == "held" for name in NAMES))
    replicas.until(lambda: verdicts(replicas) == {"fails"})
    replicas.reach(first)
    served = replicas.model.head().served
    assert (served.held, served.canary) == ((second.id,), None)
    assert served.why.startswith("of its live AUC: live AUC of 'score'")
    held = [replicas.servers[name].repository.update_counters(NAME).live_auc_held for name in NAMES]
    assert sum(held) == 1
    # One that starts later holds it too, and says why.
    replicas.start("late")
    replicas.reach(first)
    replicas.until(lambda: verdicts(replicas) == {"fails"})
    replicas.servers["one"].repository.resume(NAME)
    replicas.reach(second)


def test_an_order_of_an_operator_goes_ahead(replicas: Replicas) -> None:
    _, second = begin(replicas, *NAMES)
    label(replicas, range(6), 0.95, 0.1)
    replicas.servers["three"].repository.promote(NAME)
    replicas.reach(second)
    third = replicas.put(replicas.world.change(second))
    replicas.until(lambda: all(canary_of(replicas, name) == third.id for name in NAMES))
    replicas.servers["one"].repository.canary(NAME, fraction=0.25)
    replicas.until(lambda: all(replicas.report(name)["canary"]["fraction"] == 0.25 for name in NAMES))
    replicas.servers["two"].repository.stop_canary(NAME)
    replicas.until(lambda: all(replicas.report(name)["mode"] == "held" for name in NAMES))
    replicas.reach(second)


@pytest.mark.slow
def test_another_replica_judges_when_the_judge_is_killed_and_its_labels_count_on(replicas: Replicas) -> None:
    _, second = begin(replicas, *NAMES)
    label(replicas, range(VISITS * 3 // 5), 0.6, 0.9)
    judge = replicas.objects.lease().holder
    known = sum(labelled_at(replicas, judge))
    trials = TrialObjects(replicas.model)

    def shared() -> int:
        names = replicas.model.objects.names(f"{NAME}/{LABELS}")
        mine = next(name for name in names if name.startswith(f"{judge}."))
        written = trials._written(mine)
        return 0 if written is None else written.evidence.of_canary.rows + written.evidence.of_main.rows

    replicas.until(lambda: shared() >= known - 64)  # rows of the main arm from before the canary's first do not count
    counted = shared()
    lease, there = replicas.objects.lease(), replicas.objects.replica(judge)
    assert there is not None
    replicas.stop(judge)
    replicas.objects.report(there)  # as if it had been killed
    replicas.model.objects.put(f"{NAME}/{LEASE}", lease.model_dump_json().encode())
    assert verdicts(replicas) == {"waits"}
    label(replicas, range(VISITS * 3 // 5, VISITS), 0.6, 0.9)
    replicas.reach(second)
    replicas.until(lambda: verdicts(replicas) == {"passes"})
    (name, other) = replicas.servers
    view: Any = replicas.servers[name].repository.fleet_view(NAME)
    assert view["live_auc"]["by"] in (name, other)
    rows = sum(rows_in(view["live_auc"]["reason"]))
    assert rows > sum(labelled_at(replicas, name)) + sum(labelled_at(replicas, other))
    assert counted > 0


@pytest.mark.slow
def test_the_time_limit_counts_from_when_the_canary_began_for_all(replicas: Replicas) -> None:
    replicas.world.configure(**TRIALS, live_auc_timeout_s=8)
    begin(replicas, "one")
    began = time.monotonic()
    replicas.stop("one")
    replicas.start("two")
    started = time.monotonic()
    replicas.until(lambda: replicas.report("two")["mode"] == "held")
    assert time.monotonic() - began >= 6
    assert time.monotonic() - started < 8
    assert "no judgement within 8 s" in replicas.report("two")["live_auc"]["reason"]


def test_a_shadow_at_the_replica_that_commits_changes_nothing_for_the_others(replicas: Replicas) -> None:
    first, second = begin(replicas, "one")
    replicas.servers["one"].repository.promote(NAME)
    replicas.reach(second)
    replicas.servers["one"].repository.shadow(NAME, to=first.name, share=1.0, top_k=10)
    third = replicas.put(replicas.world.change(second))
    replicas.until(lambda: canary_of(replicas, "one") == third.id)
    assert replicas.served("one") == second.id


@pytest.mark.slow
def test_a_replica_that_does_not_know_what_is_ordered_judges_nothing(replicas: Replicas) -> None:
    """It restarts with the canary, and cannot read what is ordered for all, while it could take the lease."""
    with proxy_of_store() as proxy:
        _, second = begin(replicas, "one")
        replicas.start_behind(proxy, "two")
        replicas.until(lambda: canary_of(replicas, "two") == second.id)
        replicas.stop("one")
        replicas.stop("two")
        with proxy.failing("503", lambda method, path: "head.json" in path):
            replicas.start_behind(proxy, "two")
            replicas.until(lambda: canary_of(replicas, "two") == second.id)
            time.sleep(2.5)  # looks at the canary, which are due every second
            said = TrialObjects(replicas.model).said()
            assert said is None or said.verdict == "waits"
        replicas.until(lambda: replicas.servers["two"].repository.fleet_view(NAME)["store"]["error"] == "")  # type: ignore[index,call-overload]
        replicas.until(lambda: verdicts(replicas) == {"waits"})
        said = TrialObjects(replicas.model).said()
        assert said is not None
        assert "labelled rows" in said.reason
        assert (replicas.report("two")["mode"], canary_of(replicas, "two")) == ("following", second.id)
