"""Kinds and options of tables that several ranks train: the rows are those that one process trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.trainer.ranks_process import train_with_ranks
from tests.integration.trainer.test_ranks import SAME_MODEL
from trainer import load_trained, train
from trainer.checkpoint import checkpoints, read_commit
from trainer.config import parse_text

CONFIG = (
    SAME_MODEL.replace("{name: users, dim: 4,", "{name: users, dim: 4, eviction: {after_steps: 12, period_steps: 4},")
    .replace("admit_after: 3", "admit_after: 2")
    .replace("{kind: hashed, name: tags, dim: 4, buckets: 5}", "{kind: static, name: tags, dim: 4, rows: 9}")
    .replace("shuffle_rows: 1500", "shuffle: false")
    .replace("epochs: 2", "epochs: 1")
)
# Of both ranks; half of the rows fit.
DRAM_BYTES = 60_000


@pytest.fixture
def drifting(click_table: Callable[[int, int], pa.Table], tmp_path: Path) -> Path:
    """Writes rows whose users come for some batches, and never again."""
    table = click_table(6000, 5)
    users = np.arange(6000) // 40 * 7 + table.column("user").to_numpy() % 5
    path = tmp_path / "drifting.parquet"
    pq.write_table(table.set_column(0, "user", pa.array(users)), path, row_group_size=500)
    return path


@pytest.mark.slow
def test_rows_are_evicted_and_static_as_in_one_process(drifting: Path, tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    train(parse_text(CONFIG), drifting, output=one, progress=False)
    assert train_with_ranks(3, CONFIG, drifting, several) == [0, 0, 0]
    a, b = load_trained(one), load_trained(several)
    for name, table in a.tables.items():
        mine, theirs = table.export_rows(), b.tables[name].export_rows()
        for exact in (0, 3, 5):  # ids, counts, ticks
            np.testing.assert_array_equal(mine[exact], theirs[exact])
        np.testing.assert_allclose(mine[1], theirs[1], atol=2e-5)
    assert 20 < a.tables["users"].size() < 200
    assert a.tables["tags"].size() == 9


@pytest.mark.long
@pytest.mark.slow
def test_a_filter_admits_as_in_one_process_for_any_number_of_ranks(drifting: Path, tmp_path: Path) -> None:
    kept = "admit_after: 3, admission: {type: bloom, expected_ids: 9000, false_rate: 0.1},"
    config = CONFIG.replace("admit_after: 2,", kept).replace("epochs: 1", "epochs: 2")
    assert kept in config
    first = config.replace("epochs: 2", "epochs: 1")
    one, several = tmp_path / "one", tmp_path / "several"
    alone = train(parse_text(config), drifting, output=one, progress=False)
    assert train_with_ranks(3, first, drifting, several) == [0, 0, 0]
    assert train_with_ranks(2, config, drifting, several, resume=True) == [0, 0]
    a, b = (load_trained(each).tables["users"] for each in (one, several))
    assert 0 < a.size() < a.waiting()
    for exact in (0, 3, 5):  # ids, counts, ticks
        np.testing.assert_array_equal(a.export_rows()[exact], b.export_rows()[exact])
    np.testing.assert_array_equal(a.native.filter_view(), b.native.filter_view())
    tables = json.loads((several / "report.json").read_text())["tables"]
    waiting = {each.name: each.waiting for each in alone.tables}
    assert {each["name"]: each["waiting"] for each in tables} == pytest.approx(waiting, rel=0.02)


@pytest.mark.long
@pytest.mark.slow
def test_rows_beyond_the_memory_of_ranks_are_the_same(drifting: Path, tmp_path: Path) -> None:
    config = CONFIG.replace("eviction: {after_steps: 12, period_steps: 4},", "").replace("epochs: 1", "epochs: 2")
    whole, bounded = tmp_path / "whole", tmp_path / "bounded"
    assert train_with_ranks(2, config, drifting, whole) == [0, 0]
    assert train_with_ranks(2, config, drifting, bounded, dram_bytes=DRAM_BYTES) == [0, 0]
    assert read_commit(checkpoints(bounded)[-1]).files == read_commit(checkpoints(whole)[-1]).files
    memory = json.loads((bounded / "report.json").read_text())["memory"]
    assert memory["dram_bytes"] == DRAM_BYTES
    assert memory["rows_fetched"] > 100
