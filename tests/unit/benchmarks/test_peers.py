"""The peers answer with the rows that they were given; what is missing says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks.disk_world import MadeTable, drop_page_cache, write_file
from benchmarks.peers import PeerMissingError
from benchmarks.peers.databases import LmdbRows, RocksRows, fresh, keys_of
from benchmarks.peers.process import HUGE_PAGES, PeerProcess
from benchmarks.traffic import random_ids

ROWS, DIM, TABLES = 260, 8, 26


def test_torch_looks_every_id_up(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, ROWS, (4, 520))
    with PeerProcess(settings=[HUGE_PAGES]) as process:
        process.take("ids", numbers, tmp_path, per_bag=10)
        for kind in ("embedding", "index_select", "numpy_take", "bag"):
            process.build(kind, rows=ROWS, dim=DIM)
            assert process.output_sum(kind, "ids", 1) == 520 * DIM
            contestant = process.contestant(kind, "ids", 520, piece_s=0.001)
            assert contestant(0) > 0
            process.drop(kind)
        with pytest.raises(PeerMissingError, match="KeyError"):
            process.build("abacus", rows=ROWS, dim=DIM)
    assert list(tmp_path.iterdir()) == []


def test_fbgemm_and_torchrec_look_every_id_up(tmp_path: Path) -> None:
    from benchmarks.peers import environment

    try:
        python = environment.python()
    except PeerMissingError as missing:
        pytest.skip(f"FBGEMM and TorchRec: {missing}")
    numbers = np.random.default_rng(1).integers(0, ROWS, (2, 520))
    with PeerProcess(python=python) as process:
        process.take("ids", numbers, tmp_path, per_bag=10)
        for kind, tables in (("fbgemm", 1), ("fbgemm_inference", 1), ("fbgemm", TABLES), ("torchrec", TABLES)):
            assert process.build(kind, rows=ROWS, dim=DIM, tables=tables)
            assert process.output_sum(kind, "ids", 0) == 520 * DIM


def test_a_child_that_cannot_start_says_its_last_words() -> None:
    with PeerProcess(python=Path("/no/such/python")) as process, pytest.raises(PeerMissingError, match="ended with"):
        process.build("embedding", rows=1, dim=1)


def test_databases_give_the_rows_that_they_were_given(tmp_path: Path) -> None:
    ids = random_ids(5000)
    made = MadeTable(ids, DIM)
    databases: list[RocksRows | LmdbRows] = [
        RocksRows(fresh(tmp_path / "rocks"), DIM, cache_bytes=1 << 20, direct=False)
    ]
    if importlib.util.find_spec("lmdb") is not None:
        databases.append(LmdbRows(fresh(tmp_path / "lmdb"), DIM, 1 << 24))
    numbers = np.random.default_rng(1).integers(0, 5000, 700)
    for database in databases:
        for shard in made.shards(made.name):
            database.load(shard.ids, shard.rows)
        database.forget()
        drop_page_cache(database.folder)
        found = database.find(ids[numbers])
        assert np.array_equal(found, np.repeat(numbers.astype(np.float32), DIM).reshape(-1, DIM))
        database.close()


def test_keys_sort_as_ids_do() -> None:
    ids = np.sort(random_ids(100))
    assert keys_of(ids) == sorted(keys_of(ids))


def test_a_file_to_read_has_the_size_asked_for(tmp_path: Path) -> None:
    write_file(tmp_path / "bytes", 9 << 20)
    assert (tmp_path / "bytes").stat().st_size == 16 << 20
