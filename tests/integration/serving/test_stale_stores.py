"""Stores of versions that are not served any more go; those that another process has open stay."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.updates.stale_stores import remove_stale_stores
from storage import SsdTier

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from pathlib import Path
from storage import SsdTier
tier = SsdTier.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
tier.close()
"""


def test_an_open_store_of_another_process_stays_until_it_is_closed(tmp_path: Path) -> None:
    for version in ("1", "2", "3"):
        SsdTier.open(tmp_path / version).close()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "1")]
    holder = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        remove_stale_stores(tmp_path, {"3"})
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "3"]
    finally:
        holder.communicate(timeout=60)
    assert holder.returncode == 0
    remove_stale_stores(tmp_path, {"3"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["3"]


def test_a_store_of_which_nothing_is_known_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SsdTier.open(tmp_path / "1").close()

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        remove_stale_stores(tmp_path, set())
    assert (tmp_path / "1" / "rocksdb").is_dir()
    remove_stale_stores(tmp_path, set())
    assert not (tmp_path / "1").exists()
