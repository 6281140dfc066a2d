"""A version or delta that is copied to its place file by file is served at the latest when it is whole."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from storage.errors import Unavailable
from tests.integration.serving.copiers import ORDERS, copy_slowly, rsync
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

# For each order: 48 copies in all, beside those by rsync.
VERSIONS = 2
DELTAS = 6


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


def set_aside(live: Live, snapshot: Planted) -> Path:
    """Moves what was just published out of the repository, before a server sees it."""
    place = live.folder / "aside" / snapshot.id
    place.parent.mkdir(exist_ok=True)
    os.rename(snapshot.path, place)
    return place


def check_copy(live: Live, before: Planted, after: Planted, source: Path, seed: int, order: str) -> None:
    """Copies a folder; until the copy ends, the served snapshot stays served, then the copied one is."""
    rng = random.Random(f"{order} {seed}")

    def still_before() -> None:
        assert live.served() is before

    copy_slowly(
        source,
        after.path,
        order=order,
        rng=rng,
        pause_s=rng.choice((0.0, 0.01, 0.06)),
        whole_size=bool(seed % 2),
        times=bool(seed // 2 % 2),
        before_each=still_before,
    )
    live.reaches(after)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_versions_copied_slowly_are_served_when_they_are_whole(live: Live, order: str) -> None:
    newest = live.version()
    copies = []
    for number in range(2, 2 + VERSIONS):
        snapshot = live.version(number)
        copies.append((snapshot, set_aside(live, snapshot)))
    live.start(poll_s=0.05)
    live.reaches(newest)
    for seed, (snapshot, source) in enumerate(copies):
        check_copy(live, newest, snapshot, source, seed, order)
        newest = snapshot
        shutil.rmtree(source)
    assert live.refused() == []


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_deltas_copied_slowly_are_served_when_they_are_whole(live: Live, order: str) -> None:
    newest = live.version()
    chain = live.chain(newest, DELTAS)
    sources = [set_aside(live, snapshot) for snapshot in chain]
    live.start(poll_s=0.05)
    for seed, (snapshot, source) in enumerate(zip(chain, sources, strict=True)):
        check_copy(live, newest, snapshot, source, seed, order)
        newest = snapshot
    assert live.refused() == []


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_versions_copied_by_rsync_in_place_are_served(live: Live) -> None:
    newest = live.version()
    copies = [live.version() for _ in range(4)]
    sources = [set_aside(live, snapshot) for snapshot in copies]
    live.start(poll_s=0.05)
    live.reaches(newest)
    for seed, (snapshot, source) in enumerate(zip(copies, sources, strict=True)):
        rsync(source, snapshot.path, kib_per_s=(0, 256, 96, 48)[seed])
        live.reaches(snapshot)
    assert live.refused() == []


def test_a_version_that_is_copied_while_the_server_starts_is_served(live: Live) -> None:
    snapshot = live.version()
    source = set_aside(live, snapshot)

    class HalfwayError(Exception):
        pass

    left = [6]

    def stop_halfway() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise HalfwayError

    copy = partial(copy_slowly, source, snapshot.path, order="manifest first", rng=random.Random(1), pause_s=0.0)
    with pytest.raises(HalfwayError):
        copy(before_each=stop_halfway)
    live.start(poll_s=0.05)
    with pytest.raises(Unavailable):
        live.served()
    with pytest.raises(Unavailable):
        live.repository.load(NAME)
    copy()
    live.reaches(snapshot)
    assert live.refused() == []
