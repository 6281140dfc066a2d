"""Page files under the SSD tier: loading in any order, many tables in one call, deadlines, bounds, older stores."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import rocksdict

from storage._pages import CorruptPageError, PageFile, PageReader
from storage.errors import ConfigError, InvalidInput, StoreError
from storage.tiers.pace import Pace
from storage.tiers.ssd.keys import MARKERS, SPILLS
from storage.tiers.ssd.options import SsdOptions, rocks_options
from storage.tiers.ssd.reads import RowRead
from storage.tiers.ssd.tier import SsdTier

ROW_BYTES = 20


def rows_of(ids: np.ndarray, row_bytes: int = ROW_BYTES) -> np.ndarray:
    places = np.arange(row_bytes, dtype=np.uint64)
    mixed = (ids.view(np.uint64)[:, None] + 1) * np.uint64(0x9E3779B97F4A7C15) >> (places % np.uint64(8) * np.uint64(7))
    return mixed.astype(np.uint8)


def random_ids(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.unique(np.concatenate([rng.integers(-(2**63), 2**63 - 1, count), [-(2**63), -1, 0, 2**63 - 1]]))


@pytest.mark.parametrize("pace", ["unhurried", "paced"])
@pytest.mark.parametrize("order", ["sorted", "shuffled", "shards out of order", "many runs", "one by one"])
def test_rows_are_loaded_in_any_order(tmp_path: Path, order: str, pace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.tiers.ssd.page_folder._MOST_RUNS", 4)
    ids = random_ids(40 if order == "one by one" else 5000)
    rng = np.random.default_rng(1)
    shards = np.array_split(ids, len(ids) if order == "one by one" else 7)
    if order == "shuffled":
        shards = [rng.permutation(ids)]
    if order == "shards out of order":
        shards = shards[::-1]
    if order in ("many runs", "one by one"):
        shards = np.array_split(rng.permutation(ids), len(shards) * 3 if order == "many runs" else len(ids))
    ssd = SsdTier.open(tmp_path / "s")
    seen: list[int] = []
    given = ((shard, rows_of(shard)) for shard in shards)
    options = {} if pace == "unhurried" else {"pace": Pace(duty=0.9)}
    assert ssd.bulk_load(0, given, seen.append, row_type="int8", **options) == len(ids)
    assert seen[-1] == len(ids)
    (path,) = (tmp_path / "s" / "pages").iterdir()
    file = PageFile.open(str(path))
    assert (file.rows, file.row_type, file.table) == (len(ids), "int8", 0)
    rows, found = ssd.find(0, ids, ROW_BYTES)
    assert found.all()
    np.testing.assert_array_equal(rows, rows_of(ids))
    ssd.close()


@pytest.mark.parametrize("shards", [[[5, 1, 5]], [[1, 2], [2, 3]], [[1, 2], [0, 2]]])
def test_an_id_that_stands_twice_is_refused_and_leaves_nothing(tmp_path: Path, shards: list[list[int]]) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    given = [(np.array(ids), rows_of(np.array(ids))) for ids in shards]
    with pytest.raises(StoreError, match="each id once"):
        ssd.bulk_load(0, given)
    assert ssd.is_empty(0)
    assert list((tmp_path / "s" / "pages").iterdir()) == []
    ssd.close()


def test_one_call_answers_many_tables_and_overlays(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    sizes = {0: 8, 5: 300, 7: 5000}
    held = {table: random_ids(300, table) for table in sizes}
    for table, row_bytes in sizes.items():
        ssd.bulk_load(table, [(held[table], rows_of(held[table], row_bytes))])
    spill = ssd.spill_number()
    ssd.bulk_load(spill, [(held[0], rows_of(held[0], 8))])
    ssd.insert_or_assign(5, held[5][:50], rows_of(held[5][:50] ^ 1, 300))
    ssd.erase(5, held[5][50:60])
    requests, rng = [], np.random.default_rng(3)
    for table, row_bytes in [*sizes.items(), (spill, 8), (99, 4)]:
        known = held.get(table, held[0])
        asked = rng.permutation(np.concatenate([known, known[:20], known[::7] ^ 1]))
        requests.append(RowRead.of(table, asked, row_bytes))
    ssd.reader.read(requests)
    for request in requests:
        known = held.get(request.table, held[0])
        want = np.isin(request.ids, known) & (request.table != 99)
        expected = rows_of(request.ids, request.rows.shape[1])
        if request.table == 5:
            want &= ~np.isin(request.ids, held[5][50:60])
            new = np.isin(request.ids, held[5][:50])
            expected[new] = rows_of(request.ids[new] ^ 1, 300)
        expected[~want] = 0
        assert request.states.tolist() == want.astype(int).tolist()
        np.testing.assert_array_equal(request.rows, expected)
    assert not ssd.is_empty(SPILLS, MARKERS)
    ssd.clear(spill)
    assert ssd.is_empty(SPILLS, MARKERS)
    assert len(list((tmp_path / "s" / "pages").iterdir())) == 3
    ssd.close()


def test_rows_of_overlays_do_not_outlive_the_process(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    ssd.bulk_load(ssd.spill_number(), [(np.arange(9), rows_of(np.arange(9)))])
    with pytest.raises(StoreError, match="cannot be changed"):
        ssd.insert_or_assign(SPILLS, np.arange(3), rows_of(np.arange(3)))
    ssd.close()
    ssd = SsdTier.open(tmp_path / "s")
    assert ssd.is_empty(SPILLS, MARKERS)
    assert list((tmp_path / "s" / "pages").iterdir()) == []
    ssd.close()


@pytest.mark.parametrize("io", ["uring", "threads"])
@pytest.mark.parametrize("direct", ["on", "off"])
def test_every_way_of_reading_gives_the_same_rows(tmp_path: Path, io: str, direct: str) -> None:
    try:
        PageReader(io=io)
    except OSError as error:
        pytest.skip(f"this machine refuses {io}: {error}")
    ssd = SsdTier.open(tmp_path / "s", SsdOptions(io=io, direct=direct, io_depth=4, io_calls=2, io_threads=3))
    ids = random_ids(3000)
    ssd.bulk_load(0, [(ids, rows_of(ids))])
    rows, found = ssd.find(0, ids, ROW_BYTES)
    assert found.all()
    np.testing.assert_array_equal(rows, rows_of(ids))
    stats = ssd.stats()
    assert stats.io == io
    assert stats.pages_read > 20
    assert stats.page_bytes > len(ids) * ROW_BYTES
    ssd.close()


def test_without_time_absent_ids_are_known_and_others_are_unresolved(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    ids = np.arange(1000)
    ssd.bulk_load(0, [(ids, rows_of(ids))])
    ssd.insert_or_assign(0, ids[:5], rows_of(ids[:5]))
    asked = np.array([3, 500, 5000])
    one = RowRead.of(0, asked, ROW_BYTES)
    ssd.reader.read([one], timeout_s=0)
    assert one.states.tolist() == [2, 2, 0]
    assert not one.rows.any()
    ssd.reader.read([one], timeout_s=60)
    assert one.states.tolist() == [1, 1, 0]
    assert ssd.stats().ids_unresolved == 1
    ssd.close()


def test_ids_that_nobody_changed_do_not_ask_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    ids = np.arange(1000)
    ssd.bulk_load(0, [(ids, rows_of(ids))])
    ssd.insert_or_assign(0, ids[:10], rows_of(ids[:10]))
    asked: list[int] = []
    real = ssd.database.get

    def get(group: int, some: np.ndarray) -> list[bytes | None]:
        asked.extend(some.tolist())
        return real(group, some)

    monkeypatch.setattr(ssd.database, "get", get)
    ssd.find(0, ids[5:], ROW_BYTES)
    assert sorted(asked) == [5, 6, 7, 8, 9]
    ssd.close()


def test_rows_of_another_size_are_refused(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    ids = np.arange(10)
    ssd.bulk_load(0, [(ids, rows_of(ids))])
    message = "a row has 20 bytes, expected 24; the store is damaged or belongs to another model"
    with pytest.raises(StoreError, match=message):
        ssd.find(0, ids, 24)
    with pytest.raises(InvalidInput, match="rows: one has 24 bytes, those of the table have 20"):
        ssd.insert_or_assign(0, ids, rows_of(ids, 24))
    ssd.close()


def test_a_bound_of_bytes_is_refused_before_it_is_passed(tmp_path: Path) -> None:
    limits = SsdOptions(disk_bytes=1 << 20)
    ssd = SsdTier.open(tmp_path / "s", limits)
    ids = np.arange(1 << 16)
    with pytest.raises(StoreError, match=r"may take 1048576 in all \(disk_bytes\)"):
        ssd.bulk_load(0, [(ids, rows_of(ids))])
    assert ssd.is_empty(0)
    assert list((tmp_path / "s" / "pages").iterdir()) == []
    few = ids[:2000]
    ssd.bulk_load(0, [(few, rows_of(few))])
    with pytest.raises(StoreError, match="disk_bytes"), ssd.changes(Pace(), 1 << 20):
        pass
    np.testing.assert_array_equal(ssd.find(0, few, ROW_BYTES)[0], rows_of(few))
    ssd.close()


def test_a_disk_without_room_is_refused_before_it_is_full(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s", SsdOptions(reserve_bytes=1 << 60))
    with pytest.raises(StoreError, match=r"the disk is full: .* are kept free"):
        ssd.bulk_load(0, [(np.arange(9), rows_of(np.arange(9)))])
    ssd.close()


@pytest.mark.parametrize(
    ("options", "field"),
    [({"io": "aio"}, "ssd.io"), ({"direct": "yes"}, "ssd.direct"), ({"io_depth": 0}, "ssd.io_depth")],
)
def test_wrong_options_are_named(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SsdOptions(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_store_of_the_first_format_is_emptied_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    old = rocksdict.Rdict(str(folder / "rocksdb"), rocks_options(SsdOptions()))
    old[(0).to_bytes(4, "big") + (1 << 63).to_bytes(8, "big")] = b"\0" * ROW_BYTES
    for name, text in {"tables": '{"t": 0}', "content.t": "5:abc", "at": "a" * 32, "caller.word": "kept"}.items():
        old[(0xFFFFFFFF).to_bytes(4, "big") + name.encode()] = text.encode()
    old.close()
    with caplog.at_level(logging.WARNING):
        ssd = SsdTier.open(folder)
    assert "loaded anew from the published version" in caplog.text
    assert [ssd.marker(name) for name in ("at", "content.t", "tables", "caller.word")] == [
        None,
        None,
        '{"t": 0}',
        "kept",
    ]
    assert not ssd.find(0, np.array([0]), ROW_BYTES)[1].any()
    ssd.set_marker("format", "3")
    ssd.close()
    with pytest.raises(StoreError, match="has format 3, this build reads 2"):
        SsdTier.open(folder)


def test_a_page_file_that_is_gone_is_named(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    ssd.bulk_load(0, [(np.arange(9), rows_of(np.arange(9)))])
    ssd.close()
    (path,) = (tmp_path / "s" / "pages").iterdir()
    path.unlink()
    with pytest.raises(StoreError, match=str(path)):
        SsdTier.open(tmp_path / "s")


def test_a_native_error_is_one_of_pythons(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        PageFile.open(str(tmp_path / "none"))
    assert caught.value.filename == str(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(CorruptPageError, match="short: it has 1 bytes"):
        PageFile.open(str(tmp_path / "short"))


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_a_closed_tier_has_given_back_what_it_read_with(tmp_path: Path, io: str) -> None:
    ids = random_ids(3000)

    def held() -> tuple[list[str], int]:
        files = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
        return sorted(file for file in files if "io_uring" in file or str(tmp_path) in file), threading.active_count()

    before = held()
    tier = SsdTier.open(tmp_path / "s", SsdOptions(io=io))
    tier.bulk_load(0, [(ids, rows_of(ids))])
    assert tier.find(0, ids, ROW_BYTES)[1].all()
    assert held() != before
    tier.close()
    # At once, though somebody still has the tier: not when the garbage collector comes.
    assert held() == before
    with pytest.raises(StoreError, match="closed"):
        tier.find(0, ids, ROW_BYTES)
