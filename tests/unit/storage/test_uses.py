"""Use counts are read from a published table without its rows; damage ends them and is no error."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from storage.checkpoint.tables import TableData, write_table
from storage.checkpoint.uses import read_uses


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 900))
    rows, freq = rng.random((len(ids), 8), np.float32), rng.integers(0, 256, len(ids)).astype(np.uint8)
    (tmp_path / "tables").mkdir()
    return [entry.path for entry in write_table(tmp_path, TableData("items", 8, ids, rows, freq), shard_bytes=10_000)]


def test_they_are_those_that_were_published(tmp_path: Path, shards: list[str]) -> None:
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 900))
    rng.random((len(ids), 8), np.float32)
    freq = rng.integers(0, 256, len(ids)).astype(np.uint8)
    parts = list(read_uses(tmp_path, shards))
    assert len(parts) == len(shards) > 2
    assert np.array_equal(np.concatenate([part for part, _ in parts]), ids)
    assert np.array_equal(np.concatenate([part for _, part in parts]), freq)


def test_any_damage_ends_them_with_a_warning(
    tmp_path: Path, shards: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / shards[1]
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    long = whole.replace(b'"data_offsets":[0,', b'"data_offsets":[9,', 1)
    damaged = [b"", whole[:5], whole[:header], whole[: header + 100], b"\xff" * len(whole), long]
    damaged += [whole[:at] + b"\x00" + whole[at + 1 :] for at in range(8, header, 3)]
    with caplog.at_level(logging.WARNING):
        for data in damaged:
            path.write_bytes(data)
            caplog.clear()
            assert len(list(read_uses(tmp_path, shards))) == 1
            assert "left out" in caplog.text
        path.unlink()
        assert len(list(read_uses(tmp_path, shards))) == 1
        path.symlink_to(tmp_path / shards[0])
        assert len(list(read_uses(tmp_path, shards))) == 1
