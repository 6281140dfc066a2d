"""A shadow scores copies of requests, compares, and answers nobody: its verdicts, its memory, restarts, promotion."""

from __future__ import annotations

import json
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.updates.attempts import NOTE
from serving.updates.catalog import ModelFolder
from storage.errors import Conflict, InvalidInput, NotFound
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, SPEC, Planted, ask

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient.http imports, warns about what it patches

ROWS = 24
# The planted model says in `trace` which snapshot scored, so that output always shifts.
OPTIONS: dict[str, Any] = {"retain_snapshots": 3, "shadow_min_requests": 20}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, **OPTIONS) as running:
        yield running


def shadow(live: Live) -> dict[str, Any]:
    return dict(live.report()["shadow"])


def output(live: Live, name: str = "score") -> dict[str, Any]:
    return next(each for each in shadow(live)["outputs"] if each["output"] == name)


def request(live: Live, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    user = int(rng.integers(1, live.world.users))
    return [{"user": user, "items": [int(item)]} for item in rng.choice(np.arange(1, live.world.items), ROWS, False)]


def compare(live: Live, count: int) -> list[Planted]:
    """Sends requests one by one, each after the one before was compared; returns the snapshots that answered."""
    answered = []
    before = shadow(live)
    for seed in range(count):
        result = ask(live.repository, request(live, seed))
        answered.append(live.snapshots[result.snapshot.id])
        wanted = before["requests"] + before["failures"] + seed + 1
        live.until(partial(_has_compared, live, wanted))
    return answered


def _has_compared(live: Live, count: int) -> bool:
    found = shadow(live)
    return bool(found["requests"] + found["failures"] >= count)


def loaded(live: Live) -> None:
    live.until(lambda: shadow(live)["verdict"] != "loading")


def start(live: Live, to: str, share: float = 1.0, top_k: int = 10, **options: Any) -> None:
    live.repository.shadow(NAME, to=to, share=share, top_k=top_k, **options)
    loaded(live)


def test_a_delta_that_changes_nothing_is_equal_and_its_memory_is_the_delta(live: Live) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    same = live.delta(first, changed={"item": []}, generation=first.generation)
    moved = live.delta(same, changed={"item": range(1, 9)})
    start(live, same.name)
    assert shadow(live)["verdict"] == "not enough requests"
    assert all(snapshot is first for snapshot in compare(live, 24))
    found = shadow(live)
    assert (found["verdict"], found["requests"], found["rows"], found["failures"]) == ("equal", 24, 24 * ROWS, 0)
    score = output(live)
    assert (score["mean_absolute_shift"], score["overlap"], score["not_finite"]) == (pytest.approx(0, abs=1e-6), 1.0, 0)
    assert score["rank_correlation"] == pytest.approx(1.0, abs=1e-3)
    assert score["calibration"] == pytest.approx(1.0)
    assert found["slowdown"] is not None
    assert live.states() == {"1.0": "served", "1.1": "shadow"}
    start(live, moved.name)
    overlay = next(entry["bytes"] for entry in live.report()["snapshots"] if entry["name"] == "1.2")
    weights = 2 * 4  # generation and slope
    assert 0 < overlay <= shadow(live)["memory_bytes"] <= overlay + weights + 1024
    live.repository.stop_shadow(NAME)
    live.until(lambda: live.repository.update_counters(NAME).overlay_bytes == 0)
    assert live.report()["shadow"] is None
    start(live, moved.name)
    assert shadow(live)["requests"] == 0
    compare(live, 1)
    start(live, moved.name, share=0.5)  # another share goes on
    assert shadow(live)["requests"] == 1


def test_a_changed_share_never_makes_two_threads_use_one_pipeline(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    tried = live.delta(first)
    start(live, tried.name)
    (loaded_version,) = live.repository.loaded()
    pipeline = loaded_version.parts.shadow_pipeline
    score, inside, most = pipeline.score, set[int](), 0

    def slow(*arguments: Any) -> Any:
        nonlocal most
        inside.add(threading.get_ident())
        most = max(most, len(inside))
        time.sleep(0.03)
        found = score(*arguments)
        inside.discard(threading.get_ident())
        return found

    monkeypatch.setattr(pipeline, "score", slow)
    for seed in range(8):
        for number in range(3):
            ask(live.repository, request(live, 3 * seed + number))
        live.until(lambda: inside)
        live.repository.shadow(NAME, to=tried.name, share=1 - seed / 100, top_k=10)
    compare(live, 1)
    assert most == 1


def test_shifted_scores_are_named_and_reach_no_client(live: Live) -> None:
    first = live.version(slope=1.0)
    live.start()
    live.repository.pause(NAME)
    flipped = live.delta(first, changed={"item": []}, slope=-1.0)
    start(live, flipped.id, top_k=5)
    assert all(snapshot is first for snapshot in compare(live, 24))
    found, score = shadow(live), output(live)
    assert found["verdict"] == "shifted"
    assert "output 'score': mean absolute shift" in found["reason"]
    assert "shadow_max_shift" in found["reason"]
    assert "overlap of the top rows" in found["reason"]
    assert score["overlap"] < 0.1
    assert score["rank_correlation"] == pytest.approx(-1.0, abs=0.01)
    # Both arms' scores by the reference.
    rows = [row for seed in range(24) for row in request(live, seed)]
    now, then = (snapshot.answer(rows)["score"].astype(float) for snapshot in (first, flipped))
    assert score["mean_shift"] == pytest.approx((then - now).mean(), abs=1e-6)
    assert score["mean_absolute_shift"] == pytest.approx(np.abs(then - now).mean(), abs=1e-6)
    assert score["p99_absolute_shift"] == pytest.approx(np.quantile(np.abs(then - now), 0.99), abs=1e-6)
    assert score["calibration"] == pytest.approx(then.sum() / now.sum(), abs=1e-6)
    assert live.repository.promote_shadow(NAME)["served"]["name"] == flipped.name
    assert live.served() is flipped


@pytest.mark.slow
def test_a_version_in_a_store_of_its_own_follows_its_line_and_is_promoted(live: Live) -> None:
    first = live.version(1)
    live.world.configure("version_policy { specific { versions: [1] } }", **OPTIONS)
    second = live.version(2)
    live.start()
    start(live, "2")
    assert shadow(live)["name"] == "2.0"
    with pytest.raises(NotFound, match="version 2"):
        live.repository.get(NAME, "2")
    assert live.repository.versions(NAME) == ["1"]
    assert shadow(live)["memory_bytes"] > 0
    third, fourth = live.delta(first), live.delta(second)
    live.reaches(third)  # the main arm goes its way
    live.until(lambda: shadow(live)["name"] == fourth.name)
    assert set(compare(live, 3)) == {third}
    with pytest.raises(Conflict, match=r"version_policy in config\.pbtxt does not choose version 2"):
        live.repository.promote_shadow(NAME)
    live.world.configure("version_policy { specific { versions: [2] } }", **OPTIONS)
    live.until(lambda: live.report()["served"]["id"] == fourth.id)
    assert live.served() is fourth
    assert live.report()["shadow"]["ended"] == "2.1 is served now"


def test_a_newer_version_waits_for_an_operator_while_it_is_the_shadow(live: Live) -> None:
    first = live.version(1)
    live.start()
    live.repository.pause(NAME)
    second = live.version(2)
    start(live, "2")
    live.repository.resume(NAME)
    third = live.delta(first)
    live.reaches(third)
    compare(live, 2)
    assert live.repository.promote_shadow(NAME)["served"]["id"] == second.id
    assert live.served() is second
    live.until(lambda: set(live.states()) == {"2.0"})


@pytest.mark.slow
def test_a_stopped_version_is_held(live: Live) -> None:
    first = live.version(1)
    live.start()
    live.repository.pause(NAME)
    second = live.version(2)
    start(live, "2")
    live.repository.resume(NAME)
    live.repository.stop_shadow(NAME)
    live.repository.load(NAME)
    assert (live.served(), live.report()["mode"]) == (first, "held")
    live.until(lambda: not list((live.folder / "store" / NAME).glob("2*")))
    live.repository.resume(NAME)
    live.reaches(second)


def test_the_main_arm_goes_on_past_a_shadow_and_promotion_goes_back_to_it(live: Live) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    tried = live.delta(first, slope=2.0)
    start(live, tried.name)
    live.repository.resume(NAME)
    # `tried` lies in the folder, so the main arm takes it, and the shadow has nothing to compare any more.
    live.reaches(tried)
    live.until(lambda: live.report()["shadow"] == {"ended": "1.1 is served now"})
    live.repository.rollback(NAME)
    start(live, tried.name)
    assert live.states() == {"1.0": "served", "1.1": "shadow"}
    others = [live.delta(first)]
    live.reaches(others[0])
    others += live.chain(others[0], 5)
    live.reaches(others[-1])
    assert shadow(live)["name"] == tried.name
    live.until(lambda: live.repository.update_counters(NAME).merges == 0)
    start(live, tried.name, top_k=3)  # another K begins anew
    assert set(compare(live, 2)) == {others[-1]}
    trace = [tried.answer(request(live, seed))["trace"][:, 0] for seed in range(2)]
    generation = output(live, "trace[0]")
    assert generation["mean_shift"] == pytest.approx(np.concatenate(trace).mean() - others[-1].generation)
    state = live.repository.promote_shadow(NAME)
    assert (state["served"]["name"], state["mode"]) == (tried.name, "held")
    assert live.served() is tried
    live.until(lambda: set(live.states()) == {"1.0", tried.name})


@pytest.mark.slow
def test_a_restart_goes_on_with_the_shadow(live: Live) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    tried = live.delta(live.delta(first))
    start(live, tried.name, share=1.0, top_k=7)
    compare(live, 2)
    live.stop()
    shutil.rmtree(tried.path.parent)  # the publisher keeps few deltas
    live.start()
    live.until(lambda: live.report()["shadow"]["name"] == tried.name and shadow(live)["id"] == tried.id)
    found = shadow(live)
    assert (found["share"], found["top_k"], found["requests"]) == (1.0, 7, 0)
    assert set(compare(live, 2)) == {first}
    second = live.version(2)
    start(live, "2")
    live.stop()
    live.start()
    assert shadow(live)["id"] == second.id
    with pytest.raises(NotFound, match="version 2"):
        live.repository.get(NAME, "2")
    assert set(compare(live, 2)) == {first}


def test_what_cannot_be_scored_or_loaded_fails(live: Live) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    live.delta(first, wrong_by=0.5)
    live.repository.shadow(NAME, to="1.1", share=1.0, top_k=10)
    live.until(lambda: shadow(live)["verdict"] == "fails")
    assert "ParityError: golden requests: output 'score' differs" in shadow(live)["reason"]
    assert live.refused() == []
    with pytest.raises(Conflict, match=r"1\.1 cannot be served: ParityError"):
        live.repository.promote_shadow(NAME)
    spec = {**SPEC, "inputs": [SPEC["inputs"][0], {**SPEC["inputs"][1], "name": "goods"}]}
    spec["features"] = [SPEC["features"][0], {**SPEC["features"][1], "inputs": ["goods"]}]
    live.version(2, spec=spec)
    with pytest.raises(Conflict, match=r"the input 'items' is gone.*emberline allow planted --version 2 --input items"):
        live.repository.shadow(NAME, to="2", share=1.0, top_k=10)
    with pytest.raises(NotFound, match=r"no snapshot or version '7'.*deltas are 1\.1, and there are the versions 1, 2"):
        live.repository.shadow(NAME, to="7", share=1.0, top_k=10)
    for served in ("1", "1.0", first.id):
        with pytest.raises(InvalidInput, match="is what is served"):
            live.repository.shadow(NAME, to=served, share=1.0, top_k=10)
    assert live.served() is first


@pytest.mark.parametrize("to", ["2", "1.1"])
def test_what_ended_the_engine_twice_fails_as_the_shadow_until_it_is_asked_for_again(live: Live, to: str) -> None:
    first = live.version()
    live.start()
    live.repository.pause(NAME)
    live.delta(first)
    live.version(2)
    live.stop()
    versions = ModelFolder(live.world.model_dir).scan({1: 0}).versions
    found = versions[2] if to == "2" else versions[1].deltas[-1]
    # What the second of two processes leaves that died while they loaded it.
    note = live.folder / "store" / NAME / NOTE
    note.write_text(json.dumps({"key": found.key, "path": str(found.path), "deaths": 1}))
    live.start()
    start(live, to, share=0.5)
    assert shadow(live)["verdict"] == "fails"
    assert "the engine ended 2 times while it took this" in shadow(live)["reason"]
    assert f"`emberline shadow {NAME} {to} --share 0.5` tries it again" in shadow(live)["reason"]
    assert live.served() is first
    live.stop()
    live.start()
    assert shadow(live)["verdict"] == "fails"
    start(live, to, share=0.5)
    assert shadow(live)["verdict"] == "not enough requests"


def test_the_snapshots_below_a_shadow_stay_until_too_many_came_after_it(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.updates.merging.KEPT_FOR_SHADOW", 6)
    first = live.version()
    live.start()
    second = live.delta(first)
    live.reaches(second)
    start(live, first.name)
    line = [second, *live.chain(second, 5)]
    live.reaches(line[-1])
    assert set(compare(live, 1)) == {line[-1]}
    assert live.repository.update_counters(NAME).merges == 0
    last = live.delta(line[-1])
    live.reaches(last)
    ended = "1.0: 7 snapshots came after what it was made from, and are merged"
    live.until(lambda: live.report()["shadow"] == {"ended": ended})
    live.until(lambda: live.repository.update_counters(NAME).merges == 4)
    assert live.served() is last


def test_a_rollback_below_what_a_shadow_is_staged_on_leaves_it_its_rows(live: Live) -> None:
    first = live.version()
    live.start()
    line = live.chain(first, 2)
    live.reaches(line[-1])
    live.repository.pause(NAME)
    tried = live.delta(line[-1], changed={"item": range(1, 200)})
    start(live, tried.name)
    live.repository.rollback(NAME, to=line[0].name)
    live.repository.resume(NAME)
    live.repository.rollback(NAME, to=line[0].name)
    rebased = live.delta(line[0])
    live.reaches(rebased)
    assert shadow(live)["name"] == tried.name
    start(live, tried.name, top_k=3)
    assert set(compare(live, 3)) == {rebased}
    rows = [row for seed in range(3) for row in request(live, seed)]
    now, then = (snapshot.answer(rows)["trace"].astype(float) for snapshot in (rebased, tried))
    for column in range(7):
        assert output(live, f"trace[{column}]")["mean_shift"] == pytest.approx((then - now)[:, column].mean(), abs=1e-5)
    assert shadow(live)["failures"] == 0


@pytest.mark.slow
def test_an_old_version_stays_for_its_shadow_alone_and_can_be_promoted_again(live: Live) -> None:
    first = live.version(1)
    live.start()
    second = live.delta(first)
    live.reaches(second)
    start(live, first.name)
    newer = live.version(2)
    live.reaches(newer)
    live.until(lambda: live.repository.versions(NAME) == ["2"])
    assert set(compare(live, 2)) == {newer}
    assert shadow(live)["name"] == first.name
    state = live.repository.promote_shadow(NAME)
    assert (state["served"]["name"], state["mode"]) == ("1.0", "held")
    assert live.served() is first
    live.repository.load(NAME)
    assert live.served() is first
    live.repository.resume(NAME)
    live.reaches(newer)


def test_a_shadow_of_rows_that_are_to_be_forgotten_ends(live: Live) -> None:
    first = live.version(1)
    live.start()
    live.repository.pause(NAME)
    tried = live.delta(first)
    start(live, tried.name)
    compare(live, 1)
    clean = live.version(2, erased_unix_ms=time.time_ns() // 1_000_000)
    live.repository.resume(NAME)
    live.reaches(clean)
    ended = "ids were forgotten since the version of 1.1 was published"
    live.until(lambda: live.report()["shadow"] == {"ended": ended})
    live.until(lambda: (live.report()["stores"], live.report()["kept"]) == (["2"], [clean.id]))


def test_what_the_live_guard_refused_can_be_looked_at_and_served_all_the_same(live: Live) -> None:
    first = live.version(slope=2.0)
    live.world.configure(live_guard="true", **OPTIONS)
    live.start()
    for seed in range(12):
        ask(live.repository, request(live, seed))
    flipped = live.delta(first, changed={"item": []}, slope=-2.0)
    live.until(live.refused)
    assert "live guard" in live.refused()[0]
    start(live, flipped.name)
    assert set(compare(live, 20)) == {first}
    assert shadow(live)["verdict"] == "shifted"
    assert live.repository.promote_shadow(NAME)["quarantined"] == []
    assert live.served() is flipped
    live.repository.load(NAME)
    assert live.served() is flipped
