"""Tests what a store reports to the caches that are plugged into it, and what it asks of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.errors import StoreError
from storage.tiers.listeners import Held
from storage.tiers.overlays import Overlay
from storage.tiers.tiered import TieredStore
from tests.support.storage.tier_rows import Delta, Rows

IDS = np.arange(10)


class Listener:
    """Records the events that it receives, with the store's state at that moment."""

    def __init__(self, store: TieredStore) -> None:
        self.store = store
        self.heard: list[tuple[object, ...]] = []
        self.in_use = False

    def prepare(self, mask: int) -> None:
        self.heard.append(("prepare", mask))

    def retire(self, overlay: Overlay, *, merged: bool) -> None:
        listeners = self.store.listeners
        is_seen = overlay in self.store.overlays.view.live
        self.heard.append(("retire", overlay.number, merged, is_seen, dict(listeners.retiring_now), self.store.at))

    def held(self) -> Held:
        return Held(3, 99, [3], [70])

    def close_all(self) -> None:
        self.heard.append(("close",))


def version() -> Rows:
    return Rows({"t": (IDS, np.zeros((10, 4), np.float32), np.zeros(10, np.uint8))})


def delta(name: str) -> Delta:
    return Delta(name * 32, {"t": (IDS[:2], np.ones((2, 4), np.float32))}, {})


def plugged(store: TieredStore) -> Listener:
    return store.listeners.plugged(Listener, lambda: Listener(store))


def test_a_listener_learns_of_snapshots_and_of_overlays_before_they_go(tmp_path: Path) -> None:
    rows = version()
    with TieredStore.open(tmp_path / "s", rows.tables, dram_bytes=None) as store:
        listener = plugged(store)
        assert plugged(store) is listener
        store.load(rows)
        before = store.at
        first, second = store.stage(delta("a")), store.stage(delta("b"))
        store.prepare(1 << first)
        store.merge(first, at="a" * 32)
        store.discard(second)
        assert store.listeners.retiring_now == {}
        assert listener.heard == [
            ("prepare", 1 << first),
            ("retire", first, True, True, {first: True}, before),
            ("retire", second, False, True, {second: False}, "a" * 32),
        ]
    assert listener.heard[-1] == ("close",)


def test_one_that_is_plugged_in_during_a_merge_finds_what_retires(tmp_path: Path) -> None:
    rows = version()
    with TieredStore.open(tmp_path / "s", rows.tables, dram_bytes=None) as store:
        store.load(rows)
        number = store.stage(delta("a"))
        found: list[dict[int, bool]] = []

        def plug(step: str) -> None:
            if step == "merge_ingest":
                plugged(store)
                found.append(dict(store.listeners.retiring_now))

        store.merge(number, at="a" * 32, on_step=plug)
        assert found == [{number: True}]
        assert plugged(store).heard == []


def test_what_listeners_hold_is_in_the_statistics_and_keeps_a_store_from_other_rows(tmp_path: Path) -> None:
    rows = version()
    with TieredStore.open(tmp_path / "s", rows.tables, dram_bytes=None) as store:
        listener = plugged(store)
        store.load(rows)
        stats = store.stats()
        assert (stats.rows["hbm"], stats.bytes["hbm"]) == (3, 99)
        assert (stats.tables["t"].rows["hbm"], stats.tables["t"].bytes["hbm"]) == (3, 70)
        listener.in_use = True
        with pytest.raises(StoreError, match="open a new store"):
            store.load(rows)


def test_one_that_is_plugged_into_a_closed_store_is_ended(tmp_path: Path) -> None:
    rows = version()
    store = TieredStore.open(tmp_path / "s", rows.tables, dram_bytes=None)
    store.close()
    assert plugged(store).heard == [("close",)]
