"""A store that is read whole: what is wrong is named, and dropped so that the next load brings it back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.errors import StoreError
from storage.tiers.ssd.database import Database
from storage.tiers.ssd.health import repair_store, verify_open, verify_store
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.table_book import FORMAT
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.tiered import TieredStore
from tests.support.storage.tier_rows import Rows, make_delta, make_rows, open_store, tables_of

DIMS = {"user": 4, "item": 8}


def store_of(path: Path, *, merged: bool = False) -> Rows:
    rows = make_rows(1, items=2000)
    with open_store(path, rows, 200) as store:
        if merged:
            delta = make_delta(tables_of(rows), DIMS, np.random.default_rng(2))
            store.merge(store.stage(delta), at=delta.snapshot)
    return rows


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def file_of(path: Path, table: int) -> Path:
    (found,) = (path / "pages").glob(f"{table:08x}-*.pages")
    return found


@pytest.mark.parametrize("merged", [False, True])
def test_a_sound_store_is_sound(tmp_path: Path, merged: bool) -> None:
    path = tmp_path / "s"
    rows = store_of(path, merged=merged)
    seen: list[tuple[int, int]] = []
    report = verify_store(path, lambda done, all_: seen.append((done, all_)))
    assert report.ok
    assert {table.name: table.rows for table in report.tables} == {spec.name: spec.rows for spec in rows.tables}
    assert (sum(table.changes for table in report.tables) > 0) == merged
    assert seen[-1] == (sum(table.pages for table in report.tables),) * 2
    assert repair_store(path).dropped == ()
    ssd = SsdTier.open(path)
    again = verify_open(ssd)
    assert again.ok
    assert again.tables == report.tables
    ssd.close()


def test_a_damaged_page_costs_its_table_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    rows = store_of(path)
    bad = file_of(path, 1)
    flip(bad, 4096 * 3 + 99)
    flip(bad, 4096 * 7 + 99)
    report = verify_store(path)
    assert not report.ok
    assert [len(table.problems) for table in report.tables] == [0, 2]
    assert all(str(bad) in text for text in report.tables[1].problems)
    ssd = SsdTier.open(path)
    assert not verify_open(ssd).ok
    ssd.close()
    assert repair_store(path).dropped == ("item",)
    assert verify_store(path).ok
    before = file_of(path, 0)
    with TieredStore.open(path, rows.tables, dram_bytes=200) as store:
        assert store.at == ""
        store.load(rows)
        ids, want, _ = rows.content["item"]
        got, found = store.ssd.find(1, ids, want.shape[1] * 4)
        assert found.all()
        np.testing.assert_array_equal(got.view(np.float32), want)
    assert file_of(path, 0) == before  # the other table was not loaded again


@pytest.mark.parametrize("damage", ["cut off", "gone", "header", "of another table"])
def test_a_file_that_cannot_be_opened_is_dropped(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s"
    rows = store_of(path)
    bad = file_of(path, 1)
    if damage == "cut off":
        bad.write_bytes(bad.read_bytes()[:10_000])
    elif damage == "gone":
        bad.unlink()
    elif damage == "header":
        flip(bad, 20)
    else:
        bad.write_bytes(file_of(path, 0).read_bytes())
    report = verify_store(path)
    assert [len(table.problems) for table in report.tables] == [0, 1]
    assert repair_store(path).dropped == ("item",)
    with open_store(path, rows, 200) as store:
        assert store.at == rows.snapshot
        assert store.ssd.find(1, rows.content["item"][0], 32)[1].all()


def test_a_damaged_database_costs_everything(tmp_path: Path) -> None:
    path = tmp_path / "s"
    rows = store_of(path, merged=True)
    flip(max((path / "rocksdb").glob("*.sst"), key=lambda sst: sst.stat().st_size), 300)
    report = verify_store(path)
    assert not report.ok
    assert report.problems
    assert repair_store(path).dropped == ("everything",)
    with open_store(path, rows, 200) as store:
        assert store.at == rows.snapshot
    assert verify_store(path).ok


def test_a_database_without_its_manifest_is_damaged_and_costs_everything(tmp_path: Path) -> None:
    path = tmp_path / "s"
    rows = store_of(path)
    (manifest,) = (path / "rocksdb").glob("MANIFEST-*")
    manifest.unlink()
    with pytest.raises(StoreError, match="the store is damaged"):
        SsdTier.open(path)
    assert not verify_store(path).ok
    assert repair_store(path).dropped == ("everything",)
    with open_store(path, rows, 200) as store:
        assert store.at == rows.snapshot


def test_a_store_of_an_earlier_build_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store_of(path)
    database = Database(path / "rocksdb", SsdOptions(), direct=False)
    database.set_markers({FORMAT: None})
    before = database.markers("")
    database.close()
    for call in (verify_store, repair_store):
        with pytest.raises(StoreError, match="an earlier build wrote this store"):
            call(path)
    database = Database(path / "rocksdb", SsdOptions(), direct=False)
    assert database.markers("") == before
    database.close()


def test_a_store_that_is_open_or_not_there_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store in this folder"):
        verify_store(tmp_path)
    ssd = SsdTier.open(tmp_path / "s")
    for call in (verify_store, repair_store):
        with pytest.raises(StoreError, match="another process"):
            call(tmp_path / "s")
    ssd.close()
