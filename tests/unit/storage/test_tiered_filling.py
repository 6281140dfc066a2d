"""DRAM is filled from SSD while lookups and merges run; what a lookup gives never depends on how far that is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.checkpoint.tables import Shard
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.ssd.reads import SsdReader
from storage.tiers.tiered import TieredStore
from tests.support.storage.tier_rows import (
    FEATURES,
    Rows,
    applied,
    check,
    make_delta,
    make_rows,
    open_store,
    random_ids,
    rows_of,
    tables_of,
)

DIMS = {"user": 4, "item": 8}


class Held(Rows):
    """A version whose rows nobody is allowed to read, and whose use counts wait for an event."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.content, shard_rows=rows.shard_rows)
        self.go_on = threading.Event()
        self.asked = threading.Event()

    def shards(self, table: str) -> Iterator[Shard]:
        raise AssertionError(f"the rows of {table} were read from the version")

    def uses(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.asked.set()
        assert self.go_on.wait(60)
        return super().uses(table)


def reopened(folder: Path, rows: Rows, budget: int | None) -> tuple[TieredStore, Held]:
    """Opens a store again that has its rows on SSD; DRAM is not filled yet."""
    with open_store(folder, rows, budget):
        pass
    version = Held(rows)
    store = TieredStore.open(folder, version.tables, dram_bytes=budget)
    store.load(version, fill_timeout_s=0)
    return store, version


@pytest.mark.parametrize("share", [None, 2, 0.5])
def test_lookups_are_right_before_while_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    rows = make_rows(1, users=300, items=900)
    (tmp_path / "s").mkdir()
    store, version = reopened(tmp_path / "s", rows, None if share is None else int(rows.bytes() * share))
    with store:
        (tmp_path / "s" / "hot_ids").unlink(missing_ok=True)
        ids = random_ids(rows, 32, np.random.default_rng(2))
        plan = store.plan(FEATURES)
        check(rows, FEATURES, ids, plan.lookup(32, ids))
        assert not store.is_complete(1)
        version.go_on.set()
        assert store.wait_filled(60)
        check(rows, FEATURES, ids, plan.lookup(32, ids))
        store.drain()
        store.check_integrity()
        assert store.is_complete(1) == (share != 0.5)
        if share != 0.5:
            monkeypatch.setattr(SsdReader, "read", lambda *_: pytest.fail("the disk was asked"))
            check(rows, FEATURES, ids, plan.lookup(32, ids))


@pytest.mark.parametrize("share", [None, 2, 0.5])
def test_what_is_merged_meanwhile_is_there_in_the_end(tmp_path: Path, share: float | None) -> None:
    rows = make_rows(3, users=200, items=600)
    tables = tables_of(rows)
    delta = make_delta(tables, DIMS, np.random.default_rng(4), most=500)
    now = rows_of(applied(tables, delta), DIMS)
    store, version = reopened(tmp_path / "s", rows, None if share is None else int(rows.bytes() * share))
    with store:
        plan = store.plan(FEATURES)
        if share != 0.5:  # else the list of hot ids may be enough
            assert version.asked.wait(60)
        store.merge(store.stage(delta), at=delta.snapshot)
        ids = random_ids(now, 64, np.random.default_rng(5))
        check(now, FEATURES, ids, plan.lookup(64, ids))
        version.go_on.set()
        assert store.wait_filled(60)
        store.check_integrity()
        check(now, FEATURES, ids, plan.lookup(64, ids))
        if share is None:
            assert store.is_complete(0)
            assert store.is_complete(1)
            assert [tier.size() for tier in store.dram] == [len(now.content[name][0]) for name in ("user", "item")]


def test_a_row_that_came_in_behind_a_lookup_is_not_absent_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(6)
    store, version = reopened(tmp_path / "s", rows, None)
    with store:
        plan = store.plan(FEATURES)
        real = LookupPlan._resolve

        def late(self: LookupPlan, *arguments: Any) -> int:
            # The lookup has missed its rows; now they all come in, and the tables are complete.
            version.go_on.set()
            assert store.wait_filled(60)
            assert store.is_complete(0)
            assert store.is_complete(1)
            return real(self, *arguments)

        monkeypatch.setattr(LookupPlan, "_resolve", late)
        ids = random_ids(rows, 32, np.random.default_rng(7))
        check(rows, FEATURES, ids, plan.lookup(32, ids))
