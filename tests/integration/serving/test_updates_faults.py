"""Faults of the machine while versions, deltas and the state are read: nothing is refused, lost or wrongly served."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emberline.cli.forget_servers import still_left
from serving import Server, ServerConfig
from serving.updates import model_updater
from storage.checkpoint.signed import digest_of
from storage.checkpoint.strict_json import canonical_json
from storage.errors import Unavailable
from tests.integration.serving.faults import Faults, faults
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

__all__ = ["faults"]

NUMBERS = [errno.EIO, errno.ESTALE, errno.EMFILE]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


def store(live: Live) -> Path:
    return live.folder / "store" / NAME


def reason(live: Live) -> str:
    """Returns why nothing is served."""
    with pytest.raises(Unavailable) as caught:
        live.repository.get(NAME)
    assert live.repository.index()[0].state == "UNAVAILABLE"
    return str(caught.value)


def until_reason(live: Live, text: str) -> None:
    live.until(lambda: text in (live.report()["waiting"] or ""))
    assert text in reason(live)
    assert text in live.repository.index()[0].reason


@pytest.fixture
def rolled_back(live: Live) -> list[Planted]:
    """Returns the two snapshots of a stopped server; the second was rolled back, and the first was served."""
    start = live.version()
    live.start()
    one, two = live.chain(start, 2)
    live.reaches(two)
    live.repository.rollback(NAME)
    assert live.served() is one
    live.stop()
    return [one, two]


# ---- the state file


def damage_digit(state: Path) -> None:
    """Changes one hex digit of the snapshot that is held."""
    text = state.read_text()
    place = text.index('"held":["') + 12
    state.write_text(text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :])


def add_field(state: Path) -> None:
    """Adds a field to the state file, as a newer server might."""
    content = {**json.loads(state.read_bytes()), "new_field": 1}
    state.write_bytes(canonical_json({**content, "digest": digest_of(content)}))


def test_a_digit_that_changed_ends_no_hold(live: Live, rolled_back: list[Planted]) -> None:
    damage_digit(store(live) / "state.json")
    live.start()
    assert live.served() is rolled_back[0]
    assert live.report()["mode"] == "held"


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damage_digit, add_field])
def test_a_state_that_cannot_be_understood_means_not_ready_until_it_can(
    live: Live, rolled_back: list[Planted], damage: Callable[[Path], None]
) -> None:
    state = store(live) / "state.json"
    good = state.read_bytes()
    damage(state)
    (store(live) / "state.json.copy").unlink()
    live.start()
    assert "state.json" in reason(live)
    assert "delete state.json" in reason(live)
    assert not live.repository.is_ready()
    for command in (live.repository.resume, live.repository.pause, live.repository.rollback, live.repository.pin):
        with pytest.raises(Unavailable, match=r"state\.json"):
            command(NAME)
    state.write_bytes(good)
    live.until(lambda: live.report()["served"] is not None)
    assert live.served() is rolled_back[0]
    assert live.report()["mode"] == "held"


def test_without_its_state_a_model_serves_the_newest(live: Live, rolled_back: list[Planted]) -> None:
    """Follows the advice in the message about a damaged state."""
    for name in ("state.json", "state.json.copy"):
        (store(live) / name).write_bytes(b"damaged")
    live.start()
    assert "delete state.json and state.json.copy" in reason(live)
    for name in ("state.json", "state.json.copy"):
        (store(live) / name).unlink()
    live.repository.load(NAME)
    live.reaches(rolled_back[1])


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_a_state_that_cannot_be_read_ends_no_hold(
    live: Live, rolled_back: list[Planted], faults: Faults, number: int
) -> None:
    faults.begin(store(live) / "state.json", number)
    live.start()
    assert os.strerror(number) in reason(live)
    faults.end()
    live.until(lambda: live.report()["served"] is not None)
    assert live.served() is rolled_back[0]
    assert live.report()["mode"] == "held"


# ---- what the store keeps


@pytest.mark.slow
@pytest.mark.parametrize("what", ["versions", "deltas"])
@pytest.mark.parametrize("decide", ["rollback", "pin", "pause"])
def test_one_failed_read_at_the_start_ends_no_decision(live: Live, faults: Faults, what: str, decide: str) -> None:
    start = live.version()
    live.start()
    one, two = live.chain(start, 2)
    live.reaches(two)
    getattr(live.repository, decide)(NAME)
    before = live.report()
    served = one if decide == "rollback" else two
    live.stop()
    # The publisher has gone on, so that there is something newer that could be served by mistake.
    live.version()
    shutil.rmtree(start.path)
    for call in ("stat", "scandir", "open"):
        faults.begin(store(live) / what, errno.EIO, 1, call=call)
        live.start()
        live.until(lambda: live.report()["served"] is not None)
        assert faults.count == 1
        faults.end()
        assert live.served() is served
        assert live.report()["mode"] == before["mode"]
        live.stop()


@pytest.mark.slow
@pytest.mark.parametrize("decide", ["pin", "pause"])
def test_what_is_pinned_and_gone_is_not_replaced_before_resume(live: Live, decide: str) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    getattr(live.repository, decide)(NAME)
    live.stop()
    newer = live.version()
    kept = store(live) / "deltas" / one.id
    away = live.folder / "away"
    kept.rename(away)
    live.start()
    assert "emberline resume" in reason(live)
    assert live.report()["mode"] == ("pinned" if decide == "pin" else "paused")
    # Files that come back are served; nothing about them was lost.
    live.stop()
    away.rename(kept)
    live.start()
    assert live.served() is one
    live.stop()
    shutil.rmtree(kept)
    live.start()
    assert "emberline resume" in reason(live)
    state = live.repository.resume(NAME)
    assert (state["mode"], state["served"]) == ("following", None)
    assert "pinned" not in (state["waiting"] or "")
    live.reaches(newer)
    live.stop()
    live.start()
    live.reaches(newer)


def test_what_was_rolled_back_stays_away_when_the_store_is_lost(live: Live, rolled_back: list[Planted]) -> None:
    shutil.rmtree(store(live) / "deltas")
    live.start()
    live.reaches(rolled_back[0])
    assert live.report()["mode"] == "held"
    live.repository.resume(NAME)
    live.reaches(rolled_back[1])


def test_a_canary_whose_store_is_lost_is_tried_again_and_not_served_to_all(live: Live) -> None:
    live.stop()
    live.world.configure(retain_snapshots=3, version_reuse_share=0)
    start = live.version()
    live.start()
    live.repository.canary(NAME, fraction=0.5)
    trial = live.version()
    live.until(lambda: live.report()["canary"] is not None)
    folder = next(path for path in store(live).iterdir() if path.name == "2")
    live.stop()
    shutil.rmtree(folder)
    live.start()
    live.until(lambda: live.report()["canary"] is not None)
    assert live.report()["canary"]["id"] == trial.id
    assert live.report()["canary"]["fraction"] == 0.5
    assert live.report()["served"]["id"] == start.id


# ---- what is published


def no_thread(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def no_memory(*_: object, **__: object) -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


def test_a_store_folder_that_cannot_be_read_is_reported_and_not_taken_for_an_empty_one(live: Live) -> None:
    version = live.version()
    live.start()
    live.reaches(version)
    assert live.report()["stores"] == ["1"]
    live.repository._updater(NAME).model.store_root /= "x" * 300  # no file system has names this long
    report = live.report()
    assert (report["served"]["name"], report["stores"], report["kept"]) == (version.name, None, None)
    assert "File name too long" in report["store_unreadable"]
    assert "cannot read the folder of its stores: " in still_left(report, version=1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("what", ["tables", "manifest.json", "golden.safetensors", ""])
def test_a_delta_that_cannot_be_read_now_is_taken_later(live: Live, faults: Faults, number: int, what: str) -> None:
    start = live.version()
    live.start()
    live.repository.pause(NAME)
    one = live.delta(start)
    faults.begin(one.path / what, number)
    live.repository.resume(NAME)
    live.until(lambda: faults.count > 0 and os.strerror(number) in (live.report()["waiting"] or ""))
    assert live.served() is start
    assert live.refused() == []
    faults.end()
    live.reaches(one)
    assert live.refused() == []
    live.until(lambda: live.report()["waiting"] is None)


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("what", ["tables", "manifest.json", "golden.safetensors", "dense.pt2", ""])
def test_a_version_that_cannot_be_read_now_is_taken_later(live: Live, faults: Faults, number: int, what: str) -> None:
    start = live.version()
    two = live.version()
    faults.begin(two.path / what, number)
    live.start()
    assert os.strerror(number) in reason(live)
    assert live.refused() == []
    faults.end()
    live.reaches(two)
    assert start is not two


@pytest.mark.slow
@pytest.mark.parametrize("fault", [no_thread, no_memory])
def test_an_update_for_which_the_machine_has_no_room_is_taken_later(
    live: Live, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None]
) -> None:
    start = live.version()
    live.start()
    with monkeypatch.context() as patch:
        patch.setattr(model_updater, "take_delta", fault)
        one = live.delta(start)
        live.until(lambda: str(live.report()["waiting"]).startswith(("can't start", "[enforce")))
    live.reaches(one)
    assert live.refused() == []


def test_a_model_without_threads_is_followed_once_there_are_some(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    start = live.version()
    real = threading.Thread.start

    def begin(thread: threading.Thread) -> None:
        if thread.name.startswith(("emberline-follow", "emberline-merge")):
            no_thread()
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", begin)
        live.start()
    assert live.served() is start
    live.reaches(live.delta(start))


# ---- two servers


@pytest.mark.slow
def test_of_two_servers_the_later_one_touches_nothing_and_takes_over_with_the_hold(live: Live) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 4)
    live.reaches(chain[-1])
    live.repository.rollback(NAME)
    live.until(lambda: live.repository.update_counters(NAME).merges == 1)
    config = ServerConfig(
        model_repository=live.world.repository,
        store=live.folder / "store",
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        poll_s=0.1,
    )

    def lying() -> list[tuple[str, int]]:
        places = [store(live) / name for name in ("deltas", "versions", "state.json", "state.json.copy")]
        return sorted(
            (str(path), path.stat().st_ino) for place in places if place.exists() for path in (place, *place.rglob("*"))
        )

    before = lying()
    for _ in range(3):
        with Server(config) as second:
            with pytest.raises(Unavailable, match=rf"open in another process \({os.getpid()} on"):
                second.repository.get(NAME)
            assert lying() == before
    with Server(config) as second:
        live.stop()
        live._server = second
        live.until(lambda: live.report()["served"] is not None)
        assert live.served() is chain[-2]
        assert live.report()["mode"] == "held"
        live._server = None
