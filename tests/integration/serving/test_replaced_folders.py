"""The folder of the served version is replaced in every way that there is, back and forth; deltas appear in it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.errors import Unavailable
from tests.integration.serving.copiers import copy_slowly, exchange
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

# Between two looks of its own: what is served before that was heard of.
NEVER_S = 600.0
PROMPTLY_S = 15.0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


class Replacements:
    """Snapshots that all are version 1, and the ways in which one replaces another."""

    def __init__(self, live: Live, count: int) -> None:
        self.live = live
        self.place = live.world.model_dir / "1"
        self.aside = live.folder / "aside"
        self.rng = random.Random(5)
        self.snapshots: list[Planted] = []
        self._made = 0
        for _ in range(count):
            snapshot = live.version(1)
            os.renames(self.place, self.aside / snapshot.id)
            self.snapshots.append(snapshot)

    def put(self, snapshot: Planted) -> None:
        """Copies the snapshot to its place, which must be empty."""
        self.place.parent.mkdir(exist_ok=True)
        shutil.copytree(self.aside / snapshot.id, self.place)

    def by_renames(self, snapshot: Planted) -> None:
        fresh = self._copy(snapshot)
        os.rename(self.place, self._away())
        os.rename(fresh, self.place)

    def by_exchange(self, snapshot: Planted) -> None:
        exchange(self._copy(snapshot), self.place)

    def by_link(self, snapshot: Planted) -> None:
        link = self.live.world.model_dir / ".link"
        link.symlink_to(self._copy(snapshot))
        if not self.place.is_symlink():
            os.rename(self.place, self._away())
        os.replace(link, self.place)

    def in_place(self, snapshot: Planted) -> None:
        copy_slowly(self.aside / snapshot.id, self.place, order="shuffled", rng=self.rng, pause_s=0.01)

    def removed_and_copied(self, snapshot: Planted) -> None:
        os.rename(self.place, self._away())
        copy_slowly(self.aside / snapshot.id, self.place, order="manifest first", rng=self.rng, pause_s=0.01)

    def _copy(self, snapshot: Planted) -> Path:
        return Path(shutil.copytree(self.aside / snapshot.id, self._away()))

    def _away(self) -> Path:
        self._made += 1
        return self.live.folder / f"away-{self._made}"


WAYS: dict[str, Callable[[Replacements, Planted], None]] = {
    "renames": Replacements.by_renames,
    "exchange": Replacements.by_exchange,
    "link": Replacements.by_link,
    "in place": Replacements.in_place,
    "removed and copied": Replacements.removed_and_copied,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["renames", "exchange", "link"])
def test_what_is_replaced_at_once_is_heard_of_and_so_are_its_deltas(live: Live, way: str) -> None:
    replacements = Replacements(live, 2)
    replacements.put(replacements.snapshots[0])
    live.start(poll_s=NEVER_S)
    for snapshot in [replacements.snapshots[turn % 2] for turn in (1, 0)]:
        WAYS[way](replacements, snapshot)
        live.reaches(snapshot, PROMPTLY_S)
        live.world.last_sequence.clear()
        newest = snapshot
        for _ in range(2):
            newest = live.delta(newest)
            live.reaches(newest, PROMPTLY_S)
    assert live.refused() == []


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_a_version_that_is_replaced_back_and_forth_is_what_is_served(live: Live, way: str) -> None:
    replacements = Replacements(live, 2)
    replacements.put(replacements.snapshots[0])
    live.start(poll_s=0.05)
    for turn in (1, 0):
        snapshot = replacements.snapshots[turn]
        WAYS[way](replacements, snapshot)
        live.reaches(snapshot)
    live.world.last_sequence.clear()
    newest = live.chain(snapshot, 2)[-1]
    live.reaches(newest)
    live.stop()
    live.start(poll_s=0.05)
    assert live.served() is newest


@pytest.mark.slow
def test_every_way_after_every_other_one(live: Live) -> None:
    replacements = Replacements(live, 3)
    replacements.put(replacements.snapshots[0])
    live.start(poll_s=0.05)
    rng = random.Random(11)
    served = replacements.snapshots[0]
    for way in [way for _ in range(2) for way in rng.sample(list(WAYS), len(WAYS))]:
        snapshot = rng.choice([each for each in replacements.snapshots if each is not served])
        WAYS[way](replacements, snapshot)
        live.reaches(snapshot)
        served = snapshot
        if rng.random() < 0.5:
            live.world.last_sequence.clear()
            live.reaches(live.delta(snapshot))


def test_a_server_that_starts_while_its_version_is_overwritten_serves_it_when_it_is_whole(live: Live) -> None:
    """The store's links are of the same files, so what it kept of the old version is overwritten too."""
    replacements = Replacements(live, 2)
    old, new = replacements.snapshots
    replacements.put(old)
    live.start(poll_s=0.05)
    live.reaches(old)
    live.stop()
    source = replacements.aside / new.id
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    for half in (files[: len(files) // 2], files[len(files) // 2 :]):
        for path in half:
            (replacements.place / path).write_bytes((source / path).read_bytes())
        if half[-1] != files[-1]:
            live.start(poll_s=0.05)
            if live.repository.is_ready():
                assert live.served() is old
            else:
                assert any(entry.reason for entry in live.repository.index())
    live.reaches(new)


def test_a_pin_is_never_ended_by_overwriting_its_version(live: Live) -> None:
    replacements = Replacements(live, 2)
    old, new = replacements.snapshots
    replacements.put(old)
    live.start(poll_s=0.05)
    live.repository.pin(NAME)
    replacements.in_place(new)
    live.until(lambda: "pinned" in (live.report()["waiting"] or ""))
    assert live.served() is old
    live.stop()
    live.start(poll_s=0.05)
    # Its files are gone for good: it is served from what the store kept, or nothing is.
    if live.repository.is_ready():
        assert live.served() is old
    else:
        assert old.name in "; ".join(entry.reason for entry in live.repository.index())
        with pytest.raises(Unavailable):
            live.served()
    assert live.report()["mode"] == "pinned"
