"""Tests the SSD tier: exact rows for every int64 id, durable markers, errors that explain what happened."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage.errors import StoreError
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.ssd.keys import marker_key
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.tier import SsdTier
from tests.support.examples import examples

EDGE_IDS = np.array([-(2**63), -(2**63) + 1, -256, -1, 0, 1, 255, 256, 2**32, 2**63 - 2, 2**63 - 1])
DIM = 3
ROW_BYTES = DIM * 4


@pytest.fixture
def ssd(tmp_path: Path) -> Iterator[SsdTier]:
    tier = SsdTier.open(tmp_path / "store")
    yield tier
    tier.close()


def rows_of(ids: np.ndarray, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((len(ids), DIM)).astype(np.float32)
    rows[::3] = 0  # Rows that end in zero bytes must keep those bytes.
    return rows


def find(ssd: SsdTier, table: int, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows, found = ssd.find(table, ids, ROW_BYTES)
    return rows.view(np.float32), found


def test_every_edge_of_the_id_range_keeps_its_own_row(ssd: SsdTier) -> None:
    rows = rows_of(EDGE_IDS)
    ssd.insert_or_assign(0, EDGE_IDS, rows)
    shuffled = np.random.default_rng(1).permutation(len(EDGE_IDS))
    got, found = find(ssd, 0, EDGE_IDS[shuffled])
    assert found.tolist() == [1] * len(EDGE_IDS)
    np.testing.assert_array_equal(got, rows[shuffled])


def test_tables_do_not_see_each_other(ssd: SsdTier) -> None:
    for table in (0, 1, 255, 256):
        ssd.insert_or_assign(table, EDGE_IDS, rows_of(EDGE_IDS, seed=table))
    ssd.clear(1)
    for table in (0, 255, 256):
        np.testing.assert_array_equal(find(ssd, table, EDGE_IDS)[0], rows_of(EDGE_IDS, seed=table))
    assert not find(ssd, 1, EDGE_IDS)[1].any()
    assert not find(ssd, 2, EDGE_IDS)[1].any()


def test_absent_and_repeated_ids_are_answered_in_the_callers_order(ssd: SsdTier) -> None:
    ssd.insert_or_assign(0, np.array([5, 9]), np.array([[1], [2]], np.float32).repeat(DIM, 1))
    rows, found = find(ssd, 0, np.array([9, 7, 5, 9]))
    assert found.tolist() == [1, 0, 1, 1]
    assert rows[:, 0].tolist() == [2, 0, 1, 2]
    assert ssd.find(0, np.empty(0, np.int64), ROW_BYTES)[0].shape == (0, ROW_BYTES)


def test_assign_changes_only_what_is_there(ssd: SsdTier) -> None:
    ssd.insert_or_assign(0, np.array([1, 2]), np.zeros((2, DIM), np.float32))
    assert ssd.assign(0, np.array([2, 3]), np.ones((2, DIM), np.float32)) == 1
    rows, found = find(ssd, 0, np.array([1, 2, 3]))
    assert found.tolist() == [1, 1, 0]
    assert rows[:, 0].tolist() == [0, 1, 0]


def test_export_walks_in_order_of_ids_in_bounded_steps(ssd: SsdTier) -> None:
    rows = rows_of(EDGE_IDS)
    ssd.insert_or_assign(3, EDGE_IDS[::-1], rows[::-1])
    ssd.insert_or_assign(4, EDGE_IDS, rows)
    for limit in (1, 2, 5, len(EDGE_IDS), 100):
        cursor, ids, got = 0, [], []
        for _ in range(len(EDGE_IDS) + 1):
            cursor, part, values = ssd.export_batch(3, cursor, limit, ROW_BYTES)
            assert len(part) <= limit
            ids.extend(part.tolist())
            got.append(values.view(np.float32))
            if cursor == -1:
                break
        assert cursor == -1
        assert ids == EDGE_IDS.tolist()
        np.testing.assert_array_equal(np.concatenate(got), rows)


def test_bulk_load_replaces_a_cleared_table_and_survives_reopening(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    old = np.arange(-50, 50)
    ssd.bulk_load(0, [(old, rows_of(old, seed=1))])
    ssd.clear(0)
    new = np.arange(0, 20_000, 2)
    seen: list[int] = []
    shards = [(part, rows_of(part, seed=2)) for part in np.array_split(new, 3)]
    assert ssd.bulk_load(0, shards, seen.append) == len(new)
    assert seen == sorted(seen)
    assert seen[-1] == len(new)
    assert ssd.size_bytes() > len(new) * DIM * 4
    ssd.close()
    ssd = SsdTier.open(tmp_path / "s")
    rows, found = find(ssd, 0, new)
    assert found.all()
    np.testing.assert_array_equal(rows, np.concatenate([part for _, part in shards]))
    assert not find(ssd, 0, old[:50])[1].any()
    assert not (tmp_path / "s" / "ingest").exists()
    ssd.close()


def test_markers_are_durable_without_a_clean_close(tmp_path: Path) -> None:
    code = f"""
import os, numpy as np
from pathlib import Path
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.ssd.keys import marker_key
ssd = SsdTier.open(Path({str(tmp_path / "s")!r}))
ssd.insert_or_assign(0, np.array([7]), np.ones((1, 3), np.float32))
ssd.set_marker("content", "abc")
ssd.set_marker("gone", "x")
ssd.set_marker("gone", None)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    ssd = SsdTier.open(tmp_path / "s")
    assert ssd.marker("content") == "abc"
    assert ssd.marker("gone") is None
    assert find(ssd, 0, np.array([7]))[1].tolist() == [1]
    ssd.close()


def test_a_second_opener_is_notified_so(ssd: SsdTier) -> None:
    with pytest.raises(StoreError, match="another process"):
        SsdTier.open(ssd.path)
    code = f"""
from pathlib import Path
from storage.errors import StoreError
from storage.tiers.pace import UNHURRIED, Pace
from storage.tiers.ssd.sorted_changes import SortedChanges
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.ssd.keys import marker_key
try:
    SsdTier.open(Path({str(ssd.path)!r}))
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "open in another process" in done.stdout


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    ssd.close()
    with pytest.raises(StoreError, match="closed"):
        find(ssd, 0, np.array([1]))


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="opening"):
        SsdTier.open(tmp_path / "file" / "store")


def test_corrupt_bytes_are_an_error_and_never_rows(tmp_path: Path) -> None:
    ids = np.arange(5000)
    ssd = SsdTier.open(tmp_path / "s")
    ssd.bulk_load(0, [(ids, rows_of(ids))])
    ssd.close()
    (table,) = sorted((tmp_path / "s" / "pages").glob("*.pages"))
    data = bytearray(table.read_bytes())
    data[4096 + 2000] ^= 1
    table.write_bytes(data)
    ssd = SsdTier.open(tmp_path / "s")
    with pytest.raises(StoreError, match=f"the store is damaged.*{table}: page 0 "):
        find(ssd, 0, ids)
    ssd.close()


def test_corrupt_changes_are_an_error_and_never_rows(tmp_path: Path) -> None:
    ids = np.arange(5000)
    ssd = SsdTier.open(tmp_path / "s")
    ssd.insert_or_assign(0, ids, rows_of(ids))
    ssd.close()
    table = max((tmp_path / "s" / "rocksdb").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[2000] ^= 1
    table.write_bytes(data)
    with pytest.raises(StoreError, match="the store is damaged"):
        SsdTier.open(tmp_path / "s")  # A change that is not seen would bring an old row back.


def test_rows_of_another_size_are_refused(ssd: SsdTier) -> None:
    ssd.insert_or_assign(0, np.array([1]), np.ones((1, DIM), np.float32))
    with pytest.raises(StoreError, match="another model"):
        ssd.find(0, np.array([1]), DIM + 1)


def test_ids_come_in_order_a_few_at_a_time(ssd: SsdTier) -> None:
    ssd.insert_or_assign(3, EDGE_IDS, rows_of(EDGE_IDS))
    ssd.insert_or_assign(4, EDGE_IDS, rows_of(EDGE_IDS))
    for limit in (1, 2, len(EDGE_IDS) - 1, len(EDGE_IDS), 100):
        parts = list(ssd.ids(3, limit))
        assert all(0 < len(part) <= limit for part in parts)
        assert np.concatenate(parts).tolist() == EDGE_IDS.tolist()
    assert list(ssd.ids(5)) == []


def test_ranges_of_tables_are_cleared_and_found_empty(ssd: SsdTier) -> None:
    for table in (1, 2, 3, 4):
        ssd.insert_or_assign(table, EDGE_IDS, rows_of(EDGE_IDS))
    ssd.clear(2, 4)
    assert [ssd.is_empty(table) for table in range(6)] == [True, False, True, True, False, True]
    assert ssd.is_empty(2, 4)
    assert not ssd.is_empty(2, 5)


def test_changes_are_visible_all_at_once_or_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssd = SsdTier.open(tmp_path / "s")
    ids = np.arange(3000)
    ssd.insert_or_assign(0, ids[::2], np.zeros((1500, DIM), np.float32))
    ssd.set_markers({"at": "old", "word": "old"})

    def write(changes: SortedChanges) -> None:
        values = [None if i % 3 == 0 else np.full(DIM, 7, "<f4").tobytes() for i in ids.tolist()]
        changes.write_rows(0, ids, values)
        changes.write([marker_key("at"), marker_key("word")], [b"new", None])

    monkeypatch.setattr("storage.tiers.ssd.tier._INGEST_BYTES", 8000)
    with ssd.changes(UNHURRIED) as changes:
        write(changes)
        assert len(list((tmp_path / "s" / "ingest").iterdir())) > 5  # Several files become visible in one step.
    assert list((tmp_path / "s" / "ingest").iterdir()) == []
    assert find(ssd, 0, ids)[1].tolist() == [1, 0] * 1500
    assert (ssd.marker("at"), ssd.marker("word")) == ("old", "old")
    monkeypatch.setattr("storage.tiers.ssd.tier._CHANGES_BYTES", 8000)
    with ssd.changes(Pace()) as changes:
        write(changes)
        changes.ingest()
    rows, found = find(ssd, 0, ids)
    assert found.tolist() == [0, 1, 1] * 1000
    assert (rows[found == 1] == 7).all()
    assert (ssd.marker("at"), ssd.marker("word")) == ("new", None)
    assert list((tmp_path / "s" / "ingest").iterdir()) == []
    ssd.set_markers({"at": "newer"})
    assert ssd.marker("at") == "newer"
    with ssd.changes(UNHURRIED) as changes:
        changes.ingest()  # Without changes, nothing happens.
    ssd.close()


def test_many_rows_are_written_in_bounded_batches(tmp_path: Path) -> None:
    ssd = SsdTier.open(tmp_path / "s", SsdOptions(write_batch_bytes=1000))
    ids = np.arange(1000)
    ssd.insert_or_assign(0, ids, rows_of(ids))
    np.testing.assert_array_equal(find(ssd, 0, ids)[0], rows_of(ids))
    ssd.erase(0, ids[::2])
    np.testing.assert_array_equal(find(ssd, 0, ids)[1], ids % 2)
    ssd.close()


IDS = st.lists(st.sampled_from(EDGE_IDS.tolist()), min_size=1, max_size=6, unique=True)


class SsdMachine(RuleBasedStateMachine):
    """Makes any sequence of calls beside a dict."""

    path: Path

    @initialize()
    def open(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.ssd = SsdTier.open(Path(self.folder.name) / "s")
        self.model: dict[tuple[int, int], float] = {}
        self.next = 0.0

    def _rows(self, ids: list[int]) -> np.ndarray:
        self.next += 1
        return np.full((len(ids), DIM), self.next, np.float32)

    @rule(table=st.integers(0, 1), ids=IDS)
    def insert_or_assign(self, table: int, ids: list[int]) -> None:
        self.ssd.insert_or_assign(table, np.array(ids), self._rows(ids))
        self.model.update({(table, i): self.next for i in ids})

    @rule(table=st.integers(0, 1), ids=IDS)
    def assign(self, table: int, ids: list[int]) -> None:
        present = [i for i in ids if (table, i) in self.model]
        assert self.ssd.assign(table, np.array(ids), self._rows(ids)) == len(present)
        self.model.update({(table, i): self.next for i in present})

    @rule(table=st.integers(0, 1), ids=IDS)
    def erase(self, table: int, ids: list[int]) -> None:
        self.ssd.erase(table, np.array(ids))
        for i in ids:
            self.model.pop((table, i), None)

    @rule(table=st.integers(0, 1), ids=IDS)
    def bulk_load(self, table: int, ids: list[int]) -> None:
        ids = sorted(ids)
        self.ssd.bulk_load(table, [(np.array(ids), self._rows(ids))])
        self.model.update({(table, i): self.next for i in ids})

    @rule(table=st.integers(0, 1))
    def clear(self, table: int) -> None:
        self.ssd.clear(table)
        self.model = {key: value for key, value in self.model.items() if key[0] != table}

    @rule(table=st.integers(0, 1))
    def compact(self, table: int) -> None:
        self.ssd.compact(table)

    @rule()
    def reopen(self) -> None:
        self.ssd.close()
        self.ssd = SsdTier.open(Path(self.folder.name) / "s")

    @invariant()
    def same_as_the_dict(self) -> None:
        if not hasattr(self, "ssd"):
            return
        for table in (0, 1):
            rows, found = find(self.ssd, table, EDGE_IDS)
            for index, i in enumerate(EDGE_IDS.tolist()):
                assert bool(found[index]) == ((table, i) in self.model)
                assert (rows[index] == self.model.get((table, i), 0.0)).all()
            _, ids, _ = self.ssd.export_batch(table, 0, 100, ROW_BYTES)
            assert ids.tolist() == sorted(i for t, i in self.model if t == table)

    def teardown(self) -> None:
        if hasattr(self, "ssd"):
            self.ssd.close()
            self.folder.cleanup()


TestSsdMachine = SsdMachine.TestCase
TestSsdMachine.settings = settings(max_examples=examples(15), stateful_step_count=15, deadline=None)
