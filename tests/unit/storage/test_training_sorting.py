"""Records are sorted by id a piece at a time, in memory and through a file."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from storage.errors import StoreError
from storage.tiers.training import sorting
from storage.tiers.training.sorting import sorted_records

RECORD_BYTES = 12


def shuffled(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, count, np.int64))
    rng.shuffle(ids)
    return ids, rng.integers(0, 256, (len(ids), RECORD_BYTES), np.uint8)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
@pytest.mark.parametrize("count", [0, 1, 999, 10_000])
def test_pieces_are_in_order_and_whole(
    memory_bytes: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "MEMORY_BYTES", memory_bytes)
    ids, records = shuffled(count)
    parts = [(ids[start : start + 700], records[start : start + 700]) for start in range(0, len(ids), 700)]
    found = list(sorted_records(np.sort(ids), parts, RECORD_BYTES, 300, tmp_path))
    order = np.argsort(ids)
    assert [len(part) for part, _ in found[:-1]] == [300] * max(0, len(found) - 1)
    assert np.concatenate([np.empty(0, np.int64), *(part for part, _ in found)]).tolist() == ids[order].tolist()
    for part, values in found:
        at = np.searchsorted(ids[order], part)
        assert values.tobytes() == records[order][at].tobytes()
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_the_file_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "MEMORY_BYTES", 0)
    ids, records = shuffled(10_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        with pytest.raises(StoreError, match=f"sorting 10000 rows in a file in {tmp_path}"):
            list(sorted_records(np.sort(ids), [(ids, records)], RECORD_BYTES, 300, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
