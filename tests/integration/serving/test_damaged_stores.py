"""Stores whose files are damaged, at rest and while they are served: answers stay right, and the store is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.engine.requests import InferenceResult
from storage.errors import CorruptStoreError, NotFound, Unavailable
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted, ask, check_answer, columns_of
from tests.integration.storage.trouble import DAMAGES

EVERYTHING = 10**9


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=1, dram_bytes=2000) as running:
        yield running


def store_of(live: Live) -> Path:
    """Returns the folder of the store that is served, or was when the server ended."""
    (found,) = (path.parent for path in (live.folder / "store" / NAME).glob("*/rocksdb"))
    return found


def files_of(live: Live) -> list[Path]:
    folder = store_of(live)
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in found if path.name != "LOCK" and not path.name.startswith(("LOG", "OPTIONS"))]


def ask_all(live: Live, snapshot: Planted) -> Planted:
    """Requests every row, so that each page is read; the answer is checked."""
    ids = {name: [*snapshot.tables[name], EVERYTHING] for name in snapshot.tables}
    rows = [{"user": user, "items": ids["item"][place::97]} for place, user in enumerate(ids["user"])]
    rows += [{"user": ids["user"][0], "items": [item]} for item in ids["item"]]
    size = live.repository.get(NAME).signature.max_batch_size
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    (found,) = {check_answer(ask(live.repository, part), part, live.snapshots) for part in parts}
    return found


def answers_again(live: Live, snapshot: Planted, timeout_s: float = 60.0) -> int:
    """Requests every row until each is there, and right; returns how often a request failed.

    No other error is allowed.
    """
    failures = 0
    deadline = time.monotonic() + timeout_s
    while True:
        said = ""
        try:
            assert ask_all(live, snapshot) is snapshot
        except (CorruptStoreError, Unavailable) as error:
            said = str(error)
        if not said:
            return failures
        assert str(live.folder) in said
        failures += 1
        assert time.monotonic() < deadline, live.report()
        time.sleep(0.02)


def prepared(live: Live) -> tuple[Planted, Planted]:
    """Serves 1.4, which is held by a rollback from 1.5, with 1.3 merged into the base; returns both."""
    start = live.version()
    live.start()
    chain = live.chain(start, 4)
    live.reaches(chain[-1])
    live.until(lambda: live.states() == {"1.3": "base", "1.4": "served"})
    newest = live.delta(chain[-1])
    live.reaches(newest)
    live.repository.rollback(NAME)
    assert live.served() is chain[-1]
    return chain[-1], newest


@pytest.mark.slow
def test_every_file_damaged_in_every_way_at_rest_is_made_good_and_decisions_stay(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "emberline.serving")
    served, newest = prepared(live)
    live.stop()
    sound = live.folder / "sound"
    root = live.folder / "store" / NAME
    shutil.copytree(root, sound, symlinks=True)
    whole = {str(path): sorted(DAMAGES) for path in files_of(live)}
    assert any(path.endswith(".pages") for path in whole)
    assert any(path.endswith(".sst") for path in whole)
    rng = random.Random(4)
    rebuilt = 0
    for name, hows in whole.items():
        # Each file that may matter in two ways; all of them would take minutes.
        for how in rng.sample(hows, 2):
            shutil.rmtree(root)
            shutil.copytree(sound, root, symlinks=True)
            DAMAGES[how](store_of(live) / name)
            caplog.clear()
            live.start()
            try:
                answers_again(live, served)
                report = live.report()
                assert report["mode"] == "held", (name, how)
                assert report["served"]["name"] == "1.4", (name, how)
                live.until(lambda: live.repository.is_ready())
                said = [record for record in caplog.records if "filled again from published files" in record.message]
                assert len(said) <= 1, said
                rebuilt += len(said)
                assert live.repository.update_counters(NAME).versions_loaded == 0
            finally:
                live.stop()
    assert rebuilt > len(whole) / 2
    live.start()
    live.repository.resume(NAME)
    live.reaches(newest)


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["store", "database", "pages"])
def test_a_store_that_is_gone_is_filled_again_at_the_same_snapshot(live: Live, gone: str) -> None:
    served, _ = prepared(live)
    live.repository.pin(NAME)
    live.stop()
    folder = store_of(live)
    shutil.rmtree({"store": folder, "database": folder / "rocksdb", "pages": folder / "pages"}[gone])
    live.start()
    assert ask_all(live, served) is served
    assert live.report()["mode"] == "pinned"


def test_a_store_whose_version_and_deltas_are_gone_is_not_ready_and_says_why(live: Live) -> None:
    prepared(live)
    live.repository.pin(NAME)
    live.stop()
    shutil.rmtree(store_of(live) / "pages")
    shutil.rmtree(live.world.model_dir / "1")
    live.start()
    assert not live.repository.is_ready()
    with pytest.raises((Unavailable, NotFound), match=r"cannot be filled again|has no version"):
        live.repository.get(NAME)


def damage_pages(live: Live, rng: np.random.Generator) -> None:
    """Changes one byte of every page in place: the server has the files open."""
    for path in (store_of(live) / "pages").iterdir():
        with path.open("r+b") as file:
            for page in range(4096, path.stat().st_size - 4096, 4096):
                file.seek(page + int(rng.integers(0, 200)))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x10]))


@pytest.mark.slow
def test_damage_while_serving_is_said_and_made_good_behind_requests(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "emberline.serving")
    live.world.users, live.world.items = 4_000, 4_000
    served, newest = prepared(live)
    live.until(lambda: live.repository.is_ready())
    seen: dict[str, Any] = {}
    replacing = live.server.repository._models[NAME].model

    def look(_: str, step: str) -> None:
        if step == "recorded" and replacing.damage and not seen:
            (entry,) = live.repository.index()
            seen.update(
                ready=live.repository.is_ready(),
                live=live.repository.is_live(),
                model=live.repository.is_model_ready(NAME),
                state=entry.state,
                reason=entry.reason,
                waiting=live.report()["waiting"],
                gauge=live.repository.update_counters(NAME).store_rebuilding,
            )

    replacing._on_step = look
    damage_pages(live, np.random.default_rng(1))
    assert answers_again(live, served) > 0
    live.until(lambda: live.repository.update_counters(NAME).stores_rebuilt == 1)
    assert seen.pop("reason")
    assert seen.pop("waiting")
    assert seen == {"ready": False, "live": True, "model": False, "state": "UNAVAILABLE", "gauge": True}
    live.until(lambda: live.repository.is_ready())
    assert not live.repository.update_counters(NAME).store_rebuilding
    assert live.report()["mode"] == "held"
    said = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 1, said
    live.repository.resume(NAME)
    live.reaches(newest)
    following = live.delta(newest)
    live.reaches(following)
    assert ask_all(live, following) is following
    live.until(lambda: len(list((live.folder / "store" / NAME).glob("*/rocksdb"))) == 1)
    live.stop()
    live.start()
    assert ask_all(live, following) is following


@pytest.mark.slow
def test_damage_found_while_a_snapshot_is_merged_is_made_good_at_what_the_merge_leaves(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "emberline.serving")
    live.world.users, live.world.items = 4_000, 4_000
    _, newest = prepared(live)
    live.repository.resume(NAME)
    fresh = live.folder / "store" / NAME / "1-2"
    replacing = live.server.repository._models[NAME].model
    found = threading.Event()

    def damage_now(_: str, step: str) -> None:
        if step != "merge_drop" or found.is_set():
            return
        damage_pages(live, np.random.default_rng(5))
        deadline = time.monotonic() + 20
        while not replacing.damage and time.monotonic() < deadline:
            with contextlib.suppress(CorruptStoreError, Unavailable):
                ask_all(live, newest)
        found.set()
        # Long enough for what would not wait for the merge.
        deadline = time.monotonic() + 0.5
        while not fresh.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    replacing._on_step = damage_now
    following = live.delta(newest)  # the snapshot that was served before is merged now
    assert found.wait(20)
    live.until(lambda: live.repository.update_counters(NAME).stores_rebuilt == 1)
    live.reaches(following)
    assert ask_all(live, following) is following
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("another is filled to take its place" in each for each in said) == 1, said
    assert not [each for each in said if "cannot be" in each]


def test_only_requests_that_need_the_damaged_page_fail(live: Live) -> None:
    live.world.users, live.world.items = 4_000, 4_000
    live.world.configure("dynamic_batching { max_queue_delay_microseconds: 50000 }", dram_bytes=2000)
    start = live.version()
    live.start()
    replacing = live.server.repository._models[NAME]
    with replacing._turn:  # nothing is replaced as long as this lasts
        damage_pages(live, np.random.default_rng(2))
        wanted = [[{"user": user, "items": []}] for user in list(start.tables["user"])[-20:]]
        sound = {"user": EVERYTHING, "items": [EVERYTHING]}  # in no page
        model = live.repository.get(NAME)

        async def together() -> list[Any]:
            calls = [model.infer(columns_of(rows), 1) for bad in wanted for rows in ([sound], bad)]
            return await asyncio.gather(*calls, return_exceptions=True)

        answers = asyncio.run(together())
        for answer in answers[::2]:
            check_answer(answer, [sound], live.snapshots)
        kinds = {type(answer) for answer in answers[1::2]}
        assert CorruptStoreError in kinds
        assert kinds <= {CorruptStoreError, InferenceResult}  # a row may be in DRAM
    answers_again(live, start)


def test_damage_that_no_request_meets_is_made_good_when_a_compaction_does(tmp_path: Path) -> None:
    with Live(tmp_path, retain_snapshots=1) as live:
        newest = live.version()
        live.start()
        for _ in range(3):
            newest = live.delta(newest)
            live.reaches(newest)
        live.until(lambda: len(live.states()) == 2)
        damage_pages(live, np.random.default_rng(3))
        assert ask_all(live, newest) is newest  # from DRAM
        line = live.server.repository._models[NAME].model.mounts[0]
        with pytest.raises(CorruptStoreError):
            line.store.ssd.compact(0)
        live.until(lambda: live.repository.update_counters(NAME).stores_rebuilt == 1)
        newest = live.delta(newest)
        live.reaches(newest)
        assert ask_all(live, newest) is newest
