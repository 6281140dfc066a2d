"""One process has a model's stores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serving.updates.store_lock import LOCK, StoreLock, locked
from storage.errors import StoreError

_HOLD = """
import signal, sys
from pathlib import Path
from serving.updates.store_lock import StoreLock
StoreLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
signal.pause()
"""


def test_a_folder_has_one_holder_and_is_free_when_that_gives_it_back(tmp_path: Path) -> None:
    first, second = StoreLock(tmp_path / "model"), StoreLock(tmp_path / "model")
    first.acquire()
    first.acquire()
    with pytest.raises(StoreError, match=rf"open in another process \({os.getpid()} on "):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    with pytest.raises(StoreError), locked(tmp_path / "model"):
        pass
    second.release()
    assert (tmp_path / "model" / LOCK).exists()


def test_a_released_lock_is_free_though_a_forked_child_still_has_its_descriptor(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    lock.acquire()
    assert lock._descriptor is not None
    inherited = os.dup(lock._descriptor)
    try:
        lock.release()
        with locked(tmp_path):
            pass
    finally:
        os.close(inherited)


def test_a_holder_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=f"{process.pid} on"):
            StoreLock(tmp_path).acquire()
        process.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().startswith(f"{os.getpid()} on")


def test_a_folder_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        StoreLock(tmp_path / "file" / "model").acquire()
