"""A version that is published again under its number, or a repository that is made anew, is served as it is now."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import Server, ServerConfig
from storage.errors import NotFound, Unavailable
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted, World, ask, check_answer


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


def begin_anew(live: Live) -> None:
    """Removes every version, as `rm -rf` of the repository does, but keeps config.pbtxt."""
    for entry in live.world.model_dir.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
    live.world.last_sequence.clear()


def aside(live: Live, snapshot: Planted) -> Path:
    """Copies a version to a folder outside the repository."""
    return Path(shutil.copytree(snapshot.path, live.folder / "aside" / snapshot.id))


def another(live: Live, number: int = 1) -> tuple[Planted, Path]:
    """Publishes another version under this number; returns the snapshot, and its folder outside the repository."""
    there = live.world.model_dir / str(number)
    hidden = live.folder / "hidden"
    os.rename(there, hidden)
    snapshot = live.version(number)
    kept = live.folder / f"other-{snapshot.id}"
    os.rename(there, kept)
    os.rename(hidden, there)
    return snapshot, kept


def _answers(live: Live, version: str = "") -> Planted | None:
    """Returns the snapshot that answers now; None while none does, as between two renames."""
    try:
        return live.served(version=version)
    except (NotFound, Unavailable):
        return None


# ---- at the start


@pytest.mark.slow
@pytest.mark.parametrize("deltas", [0, 2, 6])
def test_a_version_published_again_under_its_number_is_served_from_the_start(live: Live, deltas: int) -> None:
    start = live.version()
    live.start()
    served = [start, *live.chain(start, deltas)][-1]
    live.reaches(served)
    live.stop()
    begin_anew(live)
    fresh = live.version()
    assert fresh.version == start.version
    live.start()
    assert live.served() is fresh
    assert live.report()["mode"] == "following"
    newest = live.chain(fresh, 2)[-1]
    live.reaches(newest)
    live.stop()
    live.start()
    assert live.served() is newest
    assert live.repository.update_counters(NAME).versions_loaded == 0


def test_a_repository_made_anew_with_lower_numbers_is_served_from_the_start(live: Live) -> None:
    live.version()
    live.version()
    third = live.version()
    live.start()
    live.reaches(third)
    live.stop()
    begin_anew(live)
    fresh = live.version()
    assert fresh.version == 1
    live.start()
    assert live.served() is fresh


def test_an_older_version_that_is_left_does_not_take_the_place_of_the_served_one(live: Live) -> None:
    live.version()
    second = live.version()
    live.start()
    live.reaches(second)
    shutil.rmtree(second.path)
    live.repository.load(NAME)
    assert live.served() is second
    live.stop()
    live.start()
    assert live.served() is second


def test_a_rollback_of_the_old_repository_holds_nothing_of_the_new_one(live: Live) -> None:
    start = live.version()
    live.start()
    chain = live.chain(start, 2)
    live.reaches(chain[-1])
    live.repository.rollback(NAME)
    live.stop()
    begin_anew(live)
    newest = live.chain(live.version(), 2)[-1]
    live.start()
    live.reaches(newest)


def test_a_pin_outlives_a_repository_that_was_made_anew(live: Live) -> None:
    start = live.version()
    live.start()
    (one,) = live.chain(start, 1)
    live.reaches(one)
    live.repository.pin(NAME)
    live.stop()
    begin_anew(live)
    fresh = live.version()
    live.start()
    assert live.served() is one
    assert "pinned to 1.1" in live.report()["waiting"]
    live.repository.resume(NAME)
    live.reaches(fresh)


def test_other_inputs_of_a_repository_made_anew_wait_for_nobody(live: Live) -> None:
    """The other inputs are served at once, since no caller of this process was ever served by the old version."""
    from tests.integration.serving.planted import SPEC

    live.version()
    live.start()
    live.stop()
    begin_anew(live)
    renamed = {
        "inputs": [{**entry, "missing": "error"} if entry["name"] == "items" else entry for entry in SPEC["inputs"]],
        "features": SPEC["features"],
    }
    fresh = live.version(spec=renamed)
    live.start()
    assert live.served() is fresh


@pytest.mark.slow
def test_two_repositories_with_one_model_name_can_share_a_store(live: Live, tmp_path: Path) -> None:
    for _ in range(3):
        first = live.version()
    live.start()
    live.reaches(first)
    live.stop()
    other = World(tmp_path / "elsewhere" / "repository", seed=9)
    other.generation = 100
    snapshots = {}
    for number in (1, 7):
        other.generation += 1
        planted = other.publish(number)
        snapshots[planted.id] = planted
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        config = ServerConfig(model_repository=other.repository, store=live.folder / "store", **ports)
        with Server(config) as server:
            rows = other.rows_of(planted, 12)
            assert check_answer(ask(server.repository, rows), rows, snapshots) is planted
        live.start()
        assert live.served() is first
        live.stop()


# ---- while it is served


def test_a_version_exchanged_by_renames_is_taken_and_its_deltas_follow(live: Live) -> None:
    start = live.version()
    live.start(poll_s=60.0)
    (one,) = live.chain(start, 1)
    live.reaches(one)
    other, folder = another(live)
    os.rename(start.path, live.folder / "gone")
    os.rename(folder, start.path)
    live.reaches(other)
    # Well within the 60 seconds between two polls: the folder that is there now is watched.
    live.world.last_sequence.clear()
    live.reaches(live.delta(other))


def test_a_version_exchanged_by_a_link_is_taken_and_so_is_the_way_back(live: Live) -> None:
    start = live.version()
    live.start(poll_s=60.0)
    other, folder = another(live)
    places = {start: live.folder / "first", other: folder}
    os.rename(start.path, places[start])
    link = live.world.model_dir / ".link"
    for snapshot in (start, other, start, other):
        link.symlink_to(places[snapshot])
        os.replace(link, start.path)
        live.reaches(snapshot)


def test_a_version_overwritten_in_place_is_served_when_it_is_whole(live: Live) -> None:
    start = live.version()
    live.start(poll_s=0.1)
    other, folder = another(live)
    back = aside(live, start)
    for snapshot, source in ((other, folder), (start, back), (other, folder)):
        before = live.served()
        files = sorted(path for path in source.rglob("*") if path.is_file())
        for path in files:
            assert live.served() is before
            target = start.path / path.relative_to(source)
            target.write_bytes(path.read_bytes())
        live.reaches(snapshot)


def test_load_serves_what_lies_there_under_the_number_of_the_served_version(live: Live) -> None:
    start = live.version()
    live.world.configure(updates="false", retain_snapshots=3)
    live.start(poll_s=60.0)
    other, folder = another(live)
    shutil.rmtree(start.path)
    os.rename(folder, start.path)
    assert live.served() is start
    live.repository.load(NAME)
    assert live.served() is other


def test_an_exchanged_version_that_is_refused_is_named_and_the_served_one_stays(live: Live) -> None:
    start = live.version()
    live.start(poll_s=0.1)
    os.rename(start.path, live.folder / "gone")
    live.version(1, wrong_by=0.1)
    live.until(live.refused)
    assert live.served() is start
    (entry,) = live.repository.index()
    assert entry.state == "READY"
    assert "golden" in entry.reason
    shutil.rmtree(live.world.model_dir / "1")
    good = live.version(1)
    live.reaches(good)


def test_one_of_two_served_versions_is_exchanged(live: Live) -> None:
    live.world.configure("version_policy { latest { num_versions: 2 } }", retain_snapshots=3)
    first = live.version()
    second = live.version()
    live.start(poll_s=0.1)
    live.until(lambda: len(live.repository.versions(NAME)) == 2)
    other, folder = another(live)
    os.rename(first.path, live.folder / "gone")
    os.rename(folder, first.path)
    live.until(lambda: _answers(live, "1") is other)
    assert live.served() is second


def test_a_version_that_waits_for_a_word_may_be_exchanged_for_one_that_need_not(live: Live) -> None:
    from tests.integration.serving.planted import SPEC

    start = live.version()
    live.start(poll_s=0.1)
    needed = {
        "inputs": [{**entry, "missing": "error"} for entry in SPEC["inputs"]],
        "features": SPEC["features"],
    }
    waiting = live.version(spec=needed)
    live.until(lambda: live.report()["waiting"])
    with pytest.raises(Unavailable):
        live.served(version="2")
    assert live.served() is start
    shutil.rmtree(waiting.path)
    good = live.version(2)
    live.reaches(good)


def test_a_repository_removed_and_begun_anew_while_the_server_runs_is_served(live: Live) -> None:
    start = live.version()
    live.start(poll_s=0.1, strict_readiness=False)
    chain = live.chain(start, 2)
    live.reaches(chain[-1])
    for pause in (True, False):  # The server sees the folder disappear, or finds it replaced.
        shutil.rmtree(live.world.model_dir)
        if pause:
            live.until(lambda: NAME not in live.repository.names)
        live.world.last_sequence.clear()
        newest = live.chain(live.version(), 2)[-1]
        live.until(lambda: live.repository.is_model_ready(NAME))
        live.until(lambda newest=newest: _answers(live) is newest)  # type: ignore[misc]
