"""A publisher removes what killed ones left, and leaves what others are writing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from storage.checkpoint.install import publishing

PUBLISHER = """
import sys, time
from pathlib import Path
from storage.checkpoint.install import publishing
with publishing(Path(sys.argv[1])) as folder:
    (folder / "rows").write_bytes(b"x")
    print(folder.name, flush=True)
    time.sleep(600)
"""


def test_the_folder_of_a_publisher_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", PUBLISHER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        theirs = tmp_path / other.stdout.readline().strip()
        os.utime(theirs, (0, 0))  # one that lives may have begun long ago
        with publishing(tmp_path) as ours:
            assert {theirs, ours} == set(tmp_path.iterdir())
        assert (theirs / "rows").exists()
    finally:
        other.kill()
        other.communicate()
    with publishing(tmp_path) as ours, publishing(tmp_path) as scratch:
        assert {ours, scratch} == set(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_folders_of_publishers_of_other_machines_stay_for_a_day(tmp_path: Path) -> None:
    (tmp_path / ".publish-0123456789abcdef").mkdir()
    (tmp_path / ".publish-fedcba9876543210").mkdir()
    os.utime(tmp_path / ".publish-fedcba9876543210", (0, 0))
    with publishing(tmp_path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == [".publish-0123456789abcdef"]
