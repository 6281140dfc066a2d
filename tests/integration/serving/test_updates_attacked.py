"""Calls that meet each other and updates that meet calls, at the worst moment: nothing is forgotten, stuck or mixed."""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.updates import model_updater
from serving.updates.situation import MAX_CHAIN
from storage.errors import NotFound, Unavailable
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


# ---- a full chain


@pytest.mark.slow
def test_the_next_delta_waits_visibly_while_the_chain_is_full(live: Live) -> None:
    start = live.version()
    live.start()
    line = live.repository.get(NAME).history
    pinned = line.acquire()  # a batch that does not end: nothing can be merged
    chain = live.chain(start, MAX_CHAIN + 2)
    live.reaches(chain[MAX_CHAIN - 1])
    live.until(lambda: f"{MAX_CHAIN} snapshots lie above the base" in (live.report()["waiting"] or ""))
    assert chain[MAX_CHAIN].name in live.report()["waiting"]
    assert live.repository.update_counters(NAME).waiting == live.report()["waiting"]
    assert live.served() is chain[MAX_CHAIN - 1]
    assert live.repository.rollback(NAME, to="1.30")["served"]["name"] == "1.30"
    live.repository.resume(NAME)
    assert live.served() is chain[MAX_CHAIN - 1]
    line.release(pinned)
    live.reaches(chain[-1])
    live.until(lambda: len(live.states()) == 4)
    live.until(lambda: live.report()["waiting"] is None)
    assert live.repository.update_counters(NAME).overlays == 3


# ---- versions that are served beside the newest


def two_versions(live: Live) -> tuple[Planted, Planted]:
    live.world.configure("version_policy { latest { num_versions: 2 } }", retain_snapshots="3")
    versions = live.version(), live.version()
    live.start()
    return versions


@pytest.mark.slow
def test_a_delta_of_an_older_version_ends_no_hold_of_the_newest(live: Live) -> None:
    one, two = two_versions(live)
    gone = live.delta(two)
    live.reaches(gone)
    live.repository.rollback(NAME)
    newer_one = live.delta(one)
    live.until(lambda: live.served(version="1") is newer_one)
    assert live.report()["mode"] == "held"
    live.repository.resume(NAME)
    live.reaches(gone)


def test_a_delta_of_an_older_version_is_no_canary_of_the_newest(live: Live) -> None:
    one, two = two_versions(live)
    live.repository.canary(NAME, fraction=1.0)
    newer_one = live.delta(one)
    live.until(lambda: live.served(version="1") is newer_one)
    assert live.report()["canary"] is None
    assert live.served() is two
    newer_two = live.delta(two)
    live.until(lambda: live.report()["canary"] is not None)
    assert live.served() is newer_two
    assert live.served(version="1") is newer_one


def test_what_arrives_is_no_canary_while_another_one_is_waited_for(live: Live) -> None:
    start = live.version()
    live.start()
    with pytest.raises(NotFound):
        live.repository.canary(NAME, fraction=0.5, to="1.3")
    live.repository.pause(NAME)
    live.chain(start, 3)
    live.repository.canary(NAME, fraction=0.5, to="1.3")
    live.repository.resume(NAME)
    # Links of the chain are taken as ever; the one that was named is tried.
    live.until(lambda: live.report()["canary"] is not None)
    assert live.report()["canary"]["name"] == "1.3"
    assert live.report()["served"]["name"] == "1.2"


def test_a_delta_that_was_passed_over_ends_no_rollback(live: Live) -> None:
    start = live.version()
    live.start()
    live.repository.pause(NAME)
    one = live.delta(start)
    two = live.delta(one, since=start)
    live.repository.resume(NAME)
    live.reaches(two)  # with the changes of the first, which was never taken by itself
    live.repository.rollback(NAME)
    live.until(lambda: "1.1 is held" in (live.report()["waiting"] or ""))
    assert live.report()["mode"] == "held"
    assert live.served() is start
    live.stop()
    shutil.rmtree(two.path)
    live.start()
    live.until(lambda: "1.1 is held" in (live.report()["waiting"] or ""))
    assert live.served() is start
    new = live.delta(start)
    live.reaches(new)
    assert live.report()["mode"] == "following"


def test_what_was_given_up_by_mistake_is_named_and_comes_back_as_a_canary(live: Live) -> None:
    start = live.version()
    live.start()
    one, two = live.chain(start, 2)
    live.reaches(two)
    live.repository.rollback(NAME, steps=2)
    live.reaches(live.delta(start))
    live.repository.rollback(NAME)
    live.until(lambda: "1.1 was made from what was set aside" in (live.report()["waiting"] or ""))
    live.repository.canary(NAME, fraction=0.5, to="1.1")
    live.until(lambda: live.report()["canary"] is not None)
    live.repository.promote(NAME)
    live.reaches(one)
    live.until(lambda: "1.2 was made from what was set aside" in (live.report()["waiting"] or ""))
    live.repository.canary(NAME, fraction=0.5, to=two.id)
    live.until(lambda: live.report()["canary"] is not None)
    live.repository.promote(NAME)
    live.reaches(two)
    live.reaches(live.delta(two))


# ---- unload and load


def test_what_an_operator_says_to_an_unloaded_model_changes_nothing_of_its_record(live: Live) -> None:
    start = live.version()
    live.start()
    one, two = live.chain(start, 2)
    live.reaches(two)
    live.repository.rollback(NAME)
    live.repository.canary(NAME, fraction=0.5, to=two.id)
    live.repository.pin(NAME)
    before = live.report()
    live.repository.unload(NAME)
    commands: list[Callable[[], object]] = [
        lambda: live.repository.allow(NAME, "1", ["user"]),
        lambda: live.repository.stop_canary(NAME),
        lambda: live.repository.resume(NAME),
        lambda: live.repository.pin(NAME),
    ]
    for command in commands:
        with pytest.raises(Unavailable, match="serves nothing"):
            command()
    live.repository.load(NAME)
    after = live.report()
    # It serves since it was loaded again.
    assert after["served"].pop("since_unix_ms") > before["served"].pop("since_unix_ms")
    for key in ("mode", "served", "canary"):
        assert after[key] == before[key]
    assert live.served(routing_key="") in (one, two)


def test_a_command_that_cannot_be_recorded_says_so_and_changes_nothing(live: Live) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    blocked = live.folder / "store" / NAME / ".state.json.new"
    blocked.mkdir()  # what a full disk does
    for command in (live.repository.rollback, live.repository.pause, live.repository.pin):
        with pytest.raises(Unavailable, match=r"nothing was changed.*state\.json"):
            command(NAME)
    two = live.delta(one)
    live.until(lambda: "state.json" in (live.report()["waiting"] or ""))
    assert live.served() is one
    assert live.report()["mode"] == "following"
    assert live.refused() == []
    blocked.rmdir()
    live.repository.resume(NAME)
    live.reaches(two)
    live.until(lambda: live.report()["waiting"] is None)


def held_at_the_second_delta(live: Live) -> tuple[threading.Event, threading.Event]:
    """Starts the server anew: its updater stops when it has staged the second delta (first event), until the second."""
    staged, going_on = threading.Event(), threading.Event()
    live.stop()

    def on_step(_: str, done: str) -> None:
        if done == "staged" and live.world.last_sequence[1] == 2 and not staged.is_set():
            staged.set()
            assert going_on.wait(30)

    live.on_step = on_step
    live.start()
    return staged, going_on


def test_a_load_waits_for_the_unload_that_is_under_way(live: Live) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    line = live.repository.get(NAME)
    staged, going_on = held_at_the_second_delta(live)
    two = live.delta(one)
    assert staged.wait(30)
    unload = threading.Thread(target=live.repository.unload, args=(NAME,))
    unload.start()
    live.until(lambda: live.repository._models[NAME].model.stopping.is_set())
    loads = [threading.Thread(target=live.repository.load, args=(NAME,)) for _ in range(3)]
    for load in loads:
        load.start()
    going_on.set()
    for thread in (unload, *loads):
        thread.join(60)
        assert not thread.is_alive()
    assert live.served() is two
    live.until(lambda: live.report()["waiting"] is None)
    assert line is not live.repository.get(NAME)


def test_a_load_waits_for_every_unload_before_it_not_only_the_last(live: Live) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    staged, going_on = held_at_the_second_delta(live)
    two = live.delta(one)
    assert staged.wait(30)
    first = live.repository._models[NAME]
    errors: list[str] = []

    def load() -> None:
        try:
            live.repository.load(NAME)
        except Unavailable as error:
            errors.append(str(error))

    threads = [threading.Thread(target=live.repository.unload, args=(NAME,))]
    threads[-1].start()
    live.until(first.model.stopping.is_set)
    threads.append(threading.Thread(target=load))
    threads[-1].start()
    live.until(lambda: live.repository._models[NAME] is not first)
    second = live.repository._models[NAME]
    threads.append(threading.Thread(target=live.repository.unload, args=(NAME,)))
    threads[-1].start()
    live.until(second.model.stopping.is_set)
    threads[1].join(30)  # its load was ended by the unload
    threads.append(threading.Thread(target=load))
    threads[-1].start()
    live.until(lambda: live.repository._models[NAME] is not second)
    assert not second.closed.wait(0.5)  # the first has not closed its stores
    going_on.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == [f"model '{NAME}' was unloaded while it was loaded"]
    assert live.served() is two


def test_a_load_whose_model_was_unloaded_meanwhile_does_not_lock_the_store_again(live: Live) -> None:
    start = live.version()
    live.start()
    found = live.repository._models[NAME]  # as a load has found it, before another thread unloads it
    live.repository.unload(NAME)
    found.advance()
    live.repository.load(NAME)
    assert live.repository._models[NAME] is not found
    assert live.served() is start


def count_threads(name: str, others: set[threading.Thread]) -> int:
    """Counts threads of this name. others: those that were there before, which earlier tests have left."""
    return sum(thread.name == name for thread in set(threading.enumerate()) - others)


def test_loads_and_unloads_from_many_threads_leave_one_model_that_can_be_served(live: Live) -> None:
    others = set(threading.enumerate())
    start = live.version()
    live.start()

    def work(number: int) -> None:
        for turn in range(4):
            if (number + turn) % 2:
                live.repository.unload(NAME)
            else:
                with contextlib.suppress(Unavailable):  # unloaded at once by another
                    live.repository.load(NAME)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    live.repository.load(NAME)
    assert live.served() is start
    # An updater that was unloaded while it loaded ends in the background, when its load has noticed.
    deadline = time.monotonic() + 60.0
    while (follows := count_threads(f"emberline-follow-{NAME}", others)) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert follows == 1
    assert count_threads(f"emberline-merge-{NAME}", others) == 1
    assert live.repository.unload(NAME) is None
    with pytest.raises(Unavailable):
        live.served()


# ---- what is left behind


def test_a_version_on_the_same_store_that_is_gone_past_leaves_at_once(live: Live) -> None:
    start = live.version()
    live.start()
    item = dict(start.tables["item"])
    item[3] = live.world.generation + 1
    bad = live.version(tables={"user": start.tables["user"], "item": item}, parent=start)
    live.reaches(bad)
    live.repository.rollback(NAME)
    good = live.delta(start)
    live.reaches(good)
    better = live.delta(good)
    live.reaches(better, 10)
    live.until(lambda: live.repository.update_counters(NAME).overlays == 2, 10)
    assert live.states() == {"1.0": "base", "1.1": "retained", "1.2": "served"}
    with pytest.raises(NotFound):
        live.served(version="2")


def test_a_snapshot_that_a_slow_batch_still_uses_is_dropped_when_the_batch_ends(live: Live) -> None:
    start = live.version()
    live.start()
    (bad,) = live.chain(start, 1)
    live.reaches(bad)
    line = live.repository.get(NAME).history
    pinned = line.acquire()
    live.repository.rollback(NAME)
    good = live.delta(start)
    live.reaches(good)
    better = live.delta(good)
    live.reaches(better, 10)  # it does not wait for the slow batch
    assert live.repository.update_counters(NAME).overlays == 3
    line.release(pinned)
    live.until(lambda: live.repository.update_counters(NAME).overlays == 2)
    assert bad.id not in {path.name for path in (live.folder / "store" / NAME / "deltas").iterdir()}


@pytest.mark.slow
def test_a_load_that_fails_for_the_disk_is_tried_again_ever_less_often_and_at_once_when_something_appears(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def verify(model: object, found: object, *_: object, **__: object) -> None:
        tries.append(str(found))
        raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(model_updater, "take_version", verify)
    live.version()
    live.start(poll_s=0.05)
    live.until(lambda: "the disk failed" in (live.report()["waiting"] or ""))
    time.sleep(1.5)
    # At once and after one second; looking 30 times in between is no reason to read everything again.
    before = len(tries)
    assert before <= 3
    live.version()
    live.until(lambda: len(tries) > before, 1.5)


def test_resume_says_nothing_of_what_was_waited_for_before(live: Live) -> None:
    start = live.version()
    live.start()
    live.repository.pin(NAME)
    delta = live.delta(start)
    live.until(lambda: "pinned" in (live.report()["waiting"] or ""))
    assert live.repository.resume(NAME)["waiting"] is None
    live.reaches(delta)


def test_a_rollback_further_than_there_is_says_what_there_is(live: Live) -> None:
    live.version()
    live.start()
    with pytest.raises(NotFound, match=r"there is no snapshot 1 back; served is 1\.0, there are 1\.0"):
        live.repository.rollback(NAME)
