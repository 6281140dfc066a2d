"""Deltas and versions appear while the server runs: what is served, retained, held, refused, given back."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving import Server, ServerConfig
from storage.errors import Conflict, DeadlineExceeded, InvalidInput, NotFound, Unavailable
from tests.integration.serving.live import FILES, Live
from tests.integration.serving.planted import EDGE_IDS, NAME, ask


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


def test_a_chain_is_followed_and_the_oldest_are_merged(live: Live) -> None:
    start = live.version()
    live.start()
    assert live.served() is start
    newest = start
    for _ in range(7):
        newest = live.delta(newest)
        assert live.served(min_snapshot=newest.id) is newest
    live.until(lambda: live.repository.update_counters(NAME).merges == 4)
    assert live.states() == {"1.4": "base", "1.5": "retained", "1.6": "retained", "1.7": "served"}
    counters = live.repository.update_counters(NAME)
    assert (counters.deltas_applied, counters.overlays, counters.held, counters.waiting) == (7, 3, 0, None)
    kept = live.folder / "store" / NAME / "deltas"
    live.until(lambda: {path.name for path in kept.iterdir()} == {entry["id"] for entry in live.report()["snapshots"]})


def test_removed_ids_are_absent_re_added_ones_are_new_and_edge_ids_work(live: Live) -> None:
    start = live.version()
    live.start()
    first = live.delta(start, changed={"item": EDGE_IDS}, removed={"item": [5, 6], "user": EDGE_IDS})
    second = live.delta(first, changed={"item": [5]}, removed={"item": [EDGE_IDS[0], 10**12]})
    rows = [{"user": user, "items": [5, 6, item]} for user in (1, *EDGE_IDS) for item in EDGE_IDS]
    for snapshot in (first, second):
        result = ask(live.repository, rows, min_snapshot=snapshot.id)
        np.testing.assert_array_equal(result.outputs[1], snapshot.answer(rows)["trace"])
    while live.states().get("1.2") not in ("base", None):  # None: merges may be ahead of this look
        live.delta(list(live.snapshots.values())[-1])
        live.served(min_snapshot=list(live.snapshots)[-1])
    result = ask(live.repository, rows)
    newest = live.snapshots[result.snapshot.id]
    np.testing.assert_array_equal(result.outputs[1], newest.answer(rows)["trace"])


def test_a_rollback_holds_what_came_after_until_resume(live: Live) -> None:
    start = live.version()
    live.start()
    one, two, three = live.chain(start, 3)
    live.reaches(three)
    report = live.repository.rollback(NAME, steps=2)
    assert (report["mode"], report["served"]["id"]) == ("held", one.id)
    assert live.served() is one
    assert live.states() == {"1.0": "base", "1.1": "served", "1.2": "held", "1.3": "held"}
    four = live.delta(three)
    cumulative = live.delta(four, since=start)
    live.until(lambda: live.repository.update_counters(NAME).held == 4)
    assert live.served() is one
    for held in (two, three, four, cumulative):
        with pytest.raises(Unavailable, match="held"):
            live.served(min_snapshot=held.id)
    live.repository.resume(NAME)
    live.reaches(cumulative)
    assert live.report()["mode"] == "following"


def test_a_delta_on_the_served_snapshot_ends_the_hold_for_good(live: Live) -> None:
    start = live.version()
    live.start()
    one, two = live.chain(start, 2)
    live.reaches(two)
    live.repository.rollback(NAME)
    new = live.delta(one)
    live.reaches(new)
    assert live.report()["mode"] == "following"
    assert live.states() == {"1.0": "base", "1.1": "retained", "1.3": "served"}
    # The delta that was rolled back first still lies there, and applies again: it must not come back.
    live.repository.rollback(NAME)
    assert live.served() is one
    again = live.delta(one)
    live.reaches(again)
    assert "1.2" not in live.states()


def test_rollback_goes_to_any_retained_snapshot_and_not_further(live: Live) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 6)
    live.reaches(chain[-1])
    live.until(lambda: live.repository.update_counters(NAME).merges == 3)
    for wrong in ({"to": "1.1"}, {"to": chain[1].id}, {"steps": 4}, {"to": "nothing"}):
        with pytest.raises(NotFound, match=r"there are 1\.3, 1\.4, 1\.5, 1\.6"):
            live.repository.rollback(NAME, **wrong)
    with pytest.raises(InvalidInput):
        live.repository.rollback(NAME, to="1.6")
    with pytest.raises(InvalidInput):
        live.repository.rollback(NAME, steps=0)
    for target in (chain[4], chain[3], chain[2]):
        live.repository.rollback(NAME, to=target.name)
        assert live.served() is target


def test_pause_and_pin_take_nothing_until_resume(live: Live) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    live.repository.pause(NAME)
    two = live.delta(one)
    live.until(lambda: "paused" in (live.report()["waiting"] or ""))
    assert live.report()["mode"] == "paused"
    live.repository.resume(NAME)
    live.reaches(two)
    live.repository.pin(NAME, "1.1")
    three = live.delta(two)
    live.until(lambda: live.report()["mode"] == "pinned")
    live.repository.load(NAME)
    assert live.served() is one
    with pytest.raises(NotFound):
        live.repository.pin(NAME, "1.9")
    live.repository.resume(NAME)
    live.reaches(three)


def test_a_canary_answers_its_share_and_is_promoted_or_held(live: Live) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    live.repository.canary(NAME, fraction=0.5)
    two = live.delta(one)
    live.until(lambda: live.states().get("1.2") == "canary")
    answers = {key: live.served(routing_key=f"user-{key}") for key in range(64)}
    assert set(map(id, answers.values())) == {id(one), id(two)}
    for key, snapshot in answers.items():
        assert live.served(routing_key=f"user-{key}") is snapshot
    three = live.delta(two)
    live.until(lambda: "canary" in (live.report()["waiting"] or ""))
    with pytest.raises(Conflict):
        live.repository.rollback(NAME)
    live.repository.stop_canary(NAME)
    live.until(lambda: live.report()["mode"] == "held")
    assert {live.served(routing_key=f"user-{key}").id for key in range(32)} == {one.id}
    live.repository.canary(NAME, fraction=1.0, to="1.2")
    assert live.served(routing_key="anybody") is two
    live.repository.promote(NAME)
    live.reaches(two) if live.report()["mode"] == "held" else None
    live.repository.resume(NAME)
    live.reaches(three)
    with pytest.raises(Conflict):
        live.repository.promote(NAME)
    with pytest.raises(InvalidInput):
        live.repository.canary(NAME, fraction=0.0)


@pytest.mark.slow
def test_a_version_on_trial_answers_its_share(live: Live) -> None:
    start = live.version()
    live.start()
    live.repository.canary(NAME, fraction=0.5)
    two = live.version()
    live.until(lambda: live.report()["canary"] is not None)
    answers = {key: live.served(routing_key=f"user-{key}") for key in range(64)}
    assert set(map(id, answers.values())) == {id(start), id(two)}
    live.repository.promote(NAME)
    live.reaches(two)
    live.until(lambda: live.repository.versions(NAME) == ["2"])


def test_a_version_with_the_served_rows_shares_the_store_and_one_can_go_back_over_it(live: Live) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 2)
    live.reaches(chain[-1])
    compacted = live.version(equals=chain[-1])
    live.reaches(compacted)
    live.until(lambda: live.in_store() == {"1", "deltas", "versions", *FILES})
    more = live.chain(compacted, 1)
    live.reaches(more[-1])
    live.repository.rollback(NAME, to="1.1")
    assert live.served() is chain[0]
    live.repository.resume(NAME)
    live.reaches(more[-1])
    assert live.served(min_snapshot=chain[0].id) is more[-1]
    more = [*more, *live.chain(more[-1], 5)]
    live.reaches(more[-1])
    live.until(lambda: live.repository.update_counters(NAME).merges == 6)
    live.stop()
    live.start()
    assert live.served() is more[-1]


def test_another_version_gets_a_store_of_its_own_and_the_old_one_goes(live: Live) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 2)
    live.reaches(chain[-1])
    other = live.version()
    live.reaches(other)
    store = live.folder / "store" / NAME
    live.until(lambda: {path.name for path in store.iterdir() if path.is_dir()} == {"2", "deltas", "versions"})
    live.until(lambda: not list((store / "deltas").iterdir()))
    live.until(lambda: len(list((store / "versions").iterdir())) == 1)
    assert live.repository.versions(NAME) == ["2"]


@pytest.mark.slow
def test_a_version_that_differs_in_few_rows_is_staged_on_the_same_store(live: Live) -> None:
    start = live.version()
    live.start()
    first = live.delta(start, changed={"item": [3, 4, 10**12]}, removed={"item": [5], "user": [6]})
    chain = [first, *live.chain(first, 1)]
    live.reaches(chain[-1])
    item = dict(chain[-1].tables["item"])
    del item[8], item[10**12]
    item.update(dict.fromkeys((5, 7, 10**13), live.world.generation + 1))
    item[3] = start.generation  # as it was in the version before, not as the delta left it
    version = live.version(tables={"user": chain[-1].tables["user"], "item": item}, parent=chain[-1])
    live.reaches(version)
    assert live.states() == {"1.0": "base", "1.1": "retained", "1.2": "retained", "2.0": "served"}
    ids = [[id_] for id_ in (3, 4, 5, 7, 8, 10**12, 10**13)]
    rows = [{"user": 6, "items": bag} for bag in ids]
    np.testing.assert_array_equal(ask(live.repository, rows).outputs[1], version.answer(rows)["trace"])
    live.repository.rollback(NAME)
    assert live.served() is chain[-1]
    live.repository.resume(NAME)
    assert live.served() is version
    newest = live.delta(version)
    live.reaches(newest)
    for _ in range(2):
        live.stop()
        live.start()
        assert live.served() is newest
        np.testing.assert_array_equal(ask(live.repository, rows).outputs[1], newest.answer(rows)["trace"])
        assert live.repository.update_counters(NAME).versions_loaded == 0
        newest = live.chain(newest, 4)[-1]
        live.reaches(newest)
        live.until(lambda: list(live.states().values()).count("base") == 1 and len(live.states()) == 4)
    live.until(lambda: live.in_store() == {"1", "deltas", "versions", *FILES})
    assert live.repository.versions(NAME) == ["2"]


def test_several_versions_by_policy_follow_their_own_deltas(live: Live) -> None:
    live.world.configure("version_policy { latest { num_versions: 2 } }")
    one, two = live.version(), live.version()
    live.start()
    assert live.repository.versions(NAME) == ["1", "2"]
    newer_one, newer_two = live.delta(one), live.delta(two)
    live.until(lambda: live.served(version="1") is newer_one)
    live.until(lambda: live.served() is newer_two)
    assert live.served(version="2") is newer_two
    three = live.version()
    live.reaches(three)
    live.until(lambda: live.repository.versions(NAME) == ["2", "3"])
    assert live.served(version="2") is newer_two
    with pytest.raises(NotFound):
        live.served(version="1")
    live.world.configure("version_policy { specific { versions: [2] } }")
    live.reaches(newer_two)


# ---- restart


@pytest.mark.parametrize("merged", [False, True])
def test_a_restart_serves_the_same_snapshot_though_the_repository_lost_its_deltas(live: Live, merged: bool) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 6 if merged else 2)
    live.reaches(chain[-1])
    if merged:
        live.until(lambda: live.repository.update_counters(NAME).merges == 3)
    live.repository.rollback(NAME)
    live.stop()
    shutil.rmtree(start.path / "deltas")
    live.start()
    assert live.served() is chain[-2]
    assert live.report()["mode"] == "held"
    assert live.states()[chain[-1].name] == "held"
    assert live.repository.update_counters(NAME).versions_loaded == 0
    live.repository.resume(NAME)
    live.reaches(chain[-1])


@pytest.mark.slow
@pytest.mark.parametrize("deltas", [0, 2, 6])
def test_a_pin_outlives_the_version_that_the_publisher_deleted(live: Live, deltas: int) -> None:
    start = live.version()
    live.start()
    served = [start, *live.chain(start, deltas)][-1]
    live.reaches(served)
    if deltas == 6:
        live.until(lambda: live.repository.update_counters(NAME).merges == 3)
    live.repository.pin(NAME, served.name)
    newer = live.version()
    shutil.rmtree(start.path)
    for _ in range(2):
        live.stop()
        live.start()
        assert live.served() is served
        assert live.repository.update_counters(NAME).versions_loaded == 0
    live.repository.resume(NAME)
    live.reaches(newer)
    kept = live.folder / "store" / NAME / "versions"
    live.until(lambda: len(list(kept.iterdir())) == 1)


def test_a_number_that_came_again_with_other_rows_is_not_taken_for_the_served_version(live: Live) -> None:
    start = live.version()
    live.start()
    (served,) = live.chain(start, 1)
    live.reaches(served)
    live.repository.pin(NAME, served.name)
    other = live.version()
    shutil.rmtree(start.path)
    shutil.copytree(other.path, start.path)
    manifest = json.loads((start.path / "manifest.json").read_text())
    assert manifest["version"] == 2  # a version under a wrong number: refused, but what is kept still serves
    live.stop()
    live.start()
    assert live.served() is served


def test_without_links_the_version_is_needed_in_the_repository(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    start = live.version()
    live.start()
    (served,) = live.chain(start, 1)
    live.reaches(served)
    assert not (live.folder / "store" / NAME / "versions").exists() or not list(
        (live.folder / "store" / NAME / "versions").iterdir()
    )
    live.stop()
    live.start()
    assert live.served() is served


def test_canary_pin_and_quarantine_outlive_a_restart(live: Live) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    bad = live.world.change(one, wrong_by=0.1)
    live.until(live.refused)
    live.repository.canary(NAME, fraction=0.25)
    two = live.delta(one)
    live.until(lambda: live.report()["canary"] is not None)
    live.repository.pin(NAME)
    before = live.report()
    live.stop()
    live.start()
    after = live.report()
    assert after["served"].pop("since_unix_ms") > before["served"].pop("since_unix_ms")
    for key in ("mode", "served", "canary", "quarantined"):
        assert after[key] == before[key]
    assert after["canary"]["id"] == two.id
    assert after["quarantined"][0]["snapshot"] == bad.id
    live.repository.promote(NAME)
    assert live.served() is two


def test_a_store_that_another_server_has_is_left_alone_until_it_is_free(live: Live) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 2)
    live.reaches(chain[-1])
    state = (live.folder / "store" / NAME / "state.json").read_bytes()
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=live.world.repository, store=live.folder / "store", **ports)
    with Server(config) as second:
        assert not second.repository.is_model_ready(NAME)
        assert (live.folder / "store" / NAME / "state.json").read_bytes() == state
        live.version()
        with pytest.raises(Unavailable, match="open in another process"):
            second.repository.load(NAME)
        live.stop()
        second.repository.load(NAME)
        assert second.repository.get(NAME).version == "2"


def test_a_store_that_is_not_what_the_state_says_is_filled_again(live: Live) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 2)
    live.reaches(chain[-1])
    live.stop()
    shutil.rmtree(live.folder / "store" / NAME / "deltas")
    live.start()
    assert live.served() is chain[-1]
    assert live.repository.update_counters(NAME).versions_loaded == 1
    live.stop()
    (live.folder / "store" / NAME / "state.json").write_text("{")
    live.start()
    assert live.served() is chain[-1]


# ---- coming and going


def test_models_come_and_go_with_their_folders_and_by_word(live: Live) -> None:
    shutil.rmtree(live.world.model_dir)
    live.start(strict_readiness=False)
    assert live.repository.names == []
    start = live.version()
    live.until(lambda: live.repository.is_model_ready(NAME))
    assert live.served() is start
    live.repository.unload(NAME)
    with pytest.raises(Unavailable, match="not loaded"):
        live.served()
    one = live.delta(start)
    assert live.repository.index()[0].reason == "unloaded"
    live.repository.load(NAME)
    assert live.served() is one
    live.reaches(live.delta(one))
    shutil.rmtree(live.world.model_dir)
    live.until(lambda: live.repository.names == [])
    with pytest.raises(NotFound):
        live.repository.load(NAME)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["linked", "staged", "validated"])
def test_an_unload_during_an_update_gives_it_up(live: Live, step: str) -> None:
    start = live.version()
    reached, going_on = threading.Event(), threading.Event()

    def on_step(_: str, done: str) -> None:
        if done == step and live.world.last_sequence:
            reached.set()
            assert going_on.wait(30)

    live.on_step = on_step
    live.start()
    one = live.delta(start)
    assert reached.wait(30)
    unload = threading.Thread(target=live.repository.unload, args=(NAME,))
    unload.start()
    live.until(lambda: not live.repository.is_model_ready(NAME) or unload.is_alive())
    going_on.set()
    unload.join(60)
    assert not unload.is_alive()
    assert not live.repository.is_model_ready(NAME)
    live.repository.load(NAME)
    assert live.served() is one


@pytest.mark.slow
@pytest.mark.parametrize("step", ["verified", "staged", "validated"])
def test_a_rollback_while_a_delta_is_judged_wins(live: Live, step: str) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    live.stop()
    done: list[str] = []

    def on_step(_: str, now: str) -> None:
        if now == step and not done:
            done.append(live.repository.rollback(NAME)["served"]["name"])

    live.on_step = on_step
    live.start()
    two = live.delta(one)
    live.until(lambda: live.repository.update_counters(NAME).held == 2)
    assert done == ["1.0"]
    assert live.served() is start
    assert live.states() == {"1.0": "served", "1.1": "held"}
    live.repository.resume(NAME)
    live.reaches(two)


def test_updates_can_be_left_to_a_word(live: Live) -> None:
    live.world.configure(updates="false")
    start = live.version()
    live.start()
    one = live.delta(start)
    with pytest.raises(DeadlineExceeded):
        live.served(min_snapshot=one.id, timeout_us=700_000)
    live.repository.load(NAME)
    assert live.served() is one
