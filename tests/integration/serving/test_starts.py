"""Verified files are not read again before a model is ready, and are checked again while requests are served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.updates import loading
from storage.checkpoint.reader import PublishedVersion
from storage.tiers.tiered import TieredStore
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as live:
        yield live


def shard_of(live: Live) -> Path:
    return next((live.world.repository / NAME / "1" / "tables").glob("item*"))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 4000])
def test_a_restart_reads_no_shard_of_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int | None
) -> None:
    def unreachable(*_: object) -> None:
        raise AssertionError("a shard was read")

    budgets: dict[str, Any] = {} if budget is None else {"dram_bytes": budget}
    with Live(tmp_path, **budgets) as live:
        start = live.version()
        live.start()
        chain = live.chain(start, 7)
        live.reaches(chain[-1])
        live.until(lambda: live.repository.update_counters(NAME).merges >= 2)
        live.stop()
        monkeypatch.setattr(PublishedVersion, "shards", unreachable)
        live.start()
        assert live.served() is chain[-1]
        line = live.repository._models[NAME].model.default
        live.until(lambda: line.store.wait_filled(1))
        line.store.check_integrity()
        assert line.store.is_complete(0) == (budget is None)


def test_damage_to_files_that_were_verified_before_is_said_and_no_wrong_row_is_served(live: Live) -> None:
    start = live.version()
    live.start()
    live.stop()
    shard = shard_of(live)
    data = bytearray(shard.read_bytes())
    data[-len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))  # Written in place, so that the store's hard link is damaged too.
    live.start()
    assert live.served() is start
    live.until(lambda: "is not what was published" in (live.repository.update_counters(NAME).waiting or ""))
    (entry,) = live.repository.index()
    assert entry.state == "READY"
    assert shard.name in entry.reason


def test_a_damaged_version_that_no_store_has_verified_is_refused(live: Live) -> None:
    live.version()
    shard = shard_of(live)
    data = bytearray(shard.read_bytes())
    data[-len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    live.start()
    (entry,) = live.repository.index()
    assert entry.state == "UNAVAILABLE"
    assert shard.name in entry.reason


def test_what_would_not_come_in_within_a_moment_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    waited: list[bool] = []
    real = PublishedVersion.uses

    def held(version: PublishedVersion, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        waited.append(go_on.wait(20))
        return real(version, table)

    monkeypatch.setattr(PublishedVersion, "uses", held)
    monkeypatch.setattr(loading, "_FILL_S", 3600.0)
    monkeypatch.setattr(loading, "_FILL_BYTES", 0)
    with Live(tmp_path) as live:
        start = live.version()
        live.start()
        assert live.served() is start
        store: TieredStore = live.repository._models[NAME].model.default.store
        assert not store.is_complete(0)
        go_on.set()
        live.until(lambda: store.is_complete(0) and store.is_complete(1))
    assert all(waited)


@pytest.mark.slow
def test_a_model_is_ready_before_dram_is_filled_and_after_where_it_is_to_be_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: dict[str, dict[str, Any]] = {"loaded": {}, "warm": {"ready_when": "warm"}}
    real = PublishedVersion.uses
    for name, parameters in cases.items():
        go_on = threading.Event()

        def held(
            version: PublishedVersion, table: str, go_on: threading.Event = go_on
        ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            assert go_on.wait(60)
            return real(version, table)

        monkeypatch.setattr(PublishedVersion, "uses", held)
        with Live(tmp_path / name, **parameters) as live:
            start = live.version()
            if name == "warm":
                threading.Timer(0.5, go_on.set).start()
            live.start()
            store: TieredStore = live.repository._models[NAME].model.default.store
            assert store.is_complete(0) == (name == "warm")
            assert go_on.is_set() == (name == "warm")
            assert live.served() is start
            go_on.set()
            live.until(lambda store=store: store.is_complete(0) and store.is_complete(1))  # type: ignore[misc]
            assert live.served() is start
        monkeypatch.undo()
