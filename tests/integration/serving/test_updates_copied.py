"""Versions and deltas that are copied into the repository slowly, in any order, are served once they are whole."""

from __future__ import annotations

import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.updates import model_updater
from serving.updates.replacing import take_version
from storage.errors import IntegrityError
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

Write = Callable[[Path, bytes, Callable[[], None]], None]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


def in_pieces(path: Path, data: bytes, rest: Callable[[], None]) -> None:
    """Writes a file in pieces, as cp does."""
    with path.open("wb") as file:
        for start in range(0, len(data), max(1, len(data) // 3)):
            file.write(data[start : start + max(1, len(data) // 3)])
            file.flush()
            rest()


def renamed(path: Path, data: bytes, rest: Callable[[], None]) -> None:
    """Writes a file under a hidden name and renames it, as rsync does."""
    hidden = path.with_name(f".{path.name}.Xy12Zw")
    in_pieces(hidden, data, rest)
    os.replace(hidden, path)


def reserved(path: Path, data: bytes, rest: Callable[[], None]) -> None:
    """Writes a file that has its full size from the start, as a download in parts does."""
    with path.open("wb") as file:
        file.truncate(len(data))
        file.flush()
        rest()
        file.write(data)


def copy_slowly(source: Path, target: Path, write: Write, seed: int) -> None:
    """Returns the files of a folder in any order."""
    order = random.Random(seed)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    order.shuffle(files)
    for path in files:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        write(place, path.read_bytes(), lambda: time.sleep(order.choice([0, 0, 0.02, 0.06])))


@pytest.mark.slow
@pytest.mark.parametrize("write", [in_pieces, renamed, reserved])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_version_that_is_copied_slowly_is_served_once_it_is_whole(
    live: Live, write: Write, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    start = live.version()
    two = live.version()
    last = live.chain(two, 2)[-1]
    source = live.folder / "source"
    shutil.move(two.path, source)
    live.start(poll_s=0.05)
    assert live.served() is start
    with caplog.at_level(logging.INFO, "emberline.serving"):
        copy_slowly(source, two.path, write, seed)
        live.reaches(last)
    assert live.refused() == []
    assert live.repository.update_counters(NAME).refused == {}
    told = [record for record in caplog.records if "UNAVAILABLE" in record.message]
    assert all(record.levelno == logging.INFO for record in told)
    assert len(told) == len({record.message.split(" is UNAVAILABLE")[0] for record in told})


def test_the_first_version_is_served_although_a_newer_one_is_still_being_copied(live: Live) -> None:
    start = live.version()
    two = live.version()
    source = live.folder / "source"
    shutil.move(two.path, source)
    shutil.copytree(source, two.path)
    (two.path / "dense.pt2").write_bytes(b"")
    live.start(poll_s=0.05)
    assert live.served() is start
    shutil.copyfile(source / "dense.pt2", two.path / "dense.pt2")
    live.reaches(two)


def completing(live: Live, two: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completes the copy of a version after reading it has failed, but before the failure is reported."""
    dense = two.path / "dense.pt2"
    whole = dense.read_bytes()
    dense.write_bytes(bytes(len(whole)))
    past = time.time() - 3600
    for place in (*two.path.rglob("*"), two.path):
        os.utime(place, (past, past))  # Nothing has changed for a long time.
    real = take_version

    def take(*arguments: Any, **options: Any) -> None:
        try:
            real(*arguments, **options)
        except IntegrityError:
            dense.write_bytes(whole)
            os.utime(dense, (past, past + 1))
            raise

    monkeypatch.setattr(model_updater, "take_version", take)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["wait", "restart", "load", "resume"])
def test_a_copy_that_ends_while_its_first_part_is_judged_is_served(
    live: Live, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    live.version()
    two = live.version()
    with monkeypatch.context() as patch:
        completing(live, two, patch)
        live.start(poll_s=0.2 if way == "wait" else 3600)
        if way == "restart":
            live.stop()
            live.start()
        elif way != "wait":
            time.sleep(1.1)  # A version that has just been refused is not read again at once.
            getattr(live.repository, way)(NAME)
        live.reaches(two)
    assert live.refused() == []


@pytest.mark.slow
def test_a_folder_that_is_damaged_and_at_rest_is_refused_once_and_not_read_again(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    start = live.version()
    two = live.version()
    data = (two.path / "dense.pt2").read_bytes()
    (two.path / "dense.pt2").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    steps: list[str] = []
    live.on_step = lambda _, step: steps.append(step)
    with caplog.at_level(logging.INFO, "emberline.serving"):
        live.start(poll_s=0.05)
        assert live.served() is start
        live.until(lambda: live.repository.update_counters(NAME).refused == {"IntegrityError": 1})
        tries = steps.count("found")
        time.sleep(1.0)  # Twenty polls.
    assert steps.count("found") == tries
    told = [record.levelname for record in caplog.records if "UNAVAILABLE" in record.message]
    assert told == ["INFO", "ERROR"]
    assert len(live.refused()) == 1
