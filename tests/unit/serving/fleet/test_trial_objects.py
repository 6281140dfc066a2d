"""Tests what replicas write of a canary: whose evidence counts, what is left out, and what is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.objects import ObjectStore
from storage.objects.published import PublishedModel
from storage.objects.trials import Arm, Evidence, TrialObjects, TrialReport

OLD, CANARY, MAIN = (f"{number:032x}" for number in range(1, 4))


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path}")


@pytest.fixture
def trials(store: ObjectStore) -> TrialObjects:
    return TrialObjects(PublishedModel(store, "ranker"))


def evidence(canary: str = CANARY, main: str = MAIN, output: str = "click", rows: int = 7) -> Evidence:
    return Evidence(canary=canary, main=main, output=output, of_canary=Arm(rows=rows, positives=2, auc=0.75))


def test_what_all_processes_say_of_the_canary_counts_and_the_last_word_of_each(trials: TrialObjects) -> None:
    assert trials.shared(evidence()) == []
    trials.share("one.a", evidence(rows=3))
    trials.share("one.a", evidence(rows=5))
    trials.share("one.b", evidence(rows=11))
    assert sorted(each.of_canary.rows for each in trials.shared(evidence(rows=0))) == [5, 11]
    assert trials.shared(evidence())[0].of_canary.auc == 0.75


@pytest.mark.parametrize("other", [{"canary": OLD}, {"main": OLD}, {"output": "buy"}])
def test_evidence_about_something_else_does_not_count(trials: TrialObjects, other: dict[str, str]) -> None:
    trials.share("one", evidence())
    trials.share("two", evidence(**other))  # type: ignore[arg-type]
    assert trials.shared(evidence()) == [evidence()]


def test_evidence_about_older_canaries_is_deleted_after_a_while(trials: TrialObjects, store: ObjectStore) -> None:
    trials.share("recent", evidence(canary=OLD))
    trials.share("old", evidence(canary=OLD))
    found = store.read("ranker/replicas/trial/labels/old.json")
    assert found is not None
    start, _, _ = found.data.rpartition(b'"unix_ms":')
    store.put("ranker/replicas/trial/labels/old.json", start + b'"unix_ms":1700000000000}')
    store.put("ranker/replicas/trial/labels/damaged.json", b"{")
    trials.share("one", evidence())
    assert trials.shared(evidence()) == [evidence()]
    assert set(store.names("ranker/replicas/trial/labels")) == {"recent.json", "damaged.json", "one.json"}


def test_the_last_report_is_what_is_said(trials: TrialObjects, store: ObjectStore) -> None:
    assert trials.said() is None
    for verdict in ("waits", "fails"):
        trials.say(TrialReport(snapshot="1.1", against="1.0", verdict=verdict, reason="few", by="one"))
    said = trials.said()
    assert said is not None
    assert (said.verdict, said.by) == ("fails", "one")
    store.put("ranker/replicas/trial/verdict.json", b"{}")
    assert trials.said() is None
