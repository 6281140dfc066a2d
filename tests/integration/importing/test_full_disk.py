"""An import whose files do not fit on the disk says so, publishes nothing, and leaves nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from storage.errors import CheckpointError, StoreError, Unavailable
from storage.importing import KINDS, FileTable, ImportOptions
from tests.support.small_disk import SmallDisk
from trainer.importing import import_tables, look_at_tables


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk that is full but for a little."""
    try:
        small = SmallDisk(tmp_path / "disk", 8)
    except Unavailable as error:
        pytest.skip(str(error))
    yield small
    small.close()


def tables(folder: Path) -> list[FileTable]:
    """Returns 10 MiB of rows, in no order."""
    ids = np.random.default_rng(0).permutation(40_000)
    np.savez(folder / "user.npz", ids=ids, rows=np.ones((len(ids), 64), np.float32))
    return KINDS["numpy"].open([folder / "user.npz"], ImportOptions())


def test_a_full_disk_is_named_and_gets_its_space_back(
    tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tables(tmp_path)
    with pytest.raises(CheckpointError, match=r"publishing to .*/disk/models/shop failed: .*No space left"):
        import_tables(given, disk.folder / "models", name="shop", memory_bytes=1 << 20)
    assert not [path for path in (disk.folder / "models").rglob("*") if path.is_file()]
    monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
    with pytest.raises(StoreError, match=r"/disk/.*No space left.*; rows beyond --memory go .*, and TMPDIR names"):
        look_at_tables(given, memory_bytes=1 << 20)
    assert not [path for path in disk.folder.rglob("*") if path.is_file()]
