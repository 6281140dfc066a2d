"""Tests `emberline store`: it lists a store's content and damage, and repairs the store, which is filled again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from serving.updates.store_lock import locked
from tests.integration.storage.trouble import FIRST, ROOT, check_rows, merged, opened


def store(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "emberline", "store", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def test_a_broken_table_is_found_dropped_and_filled_again(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "model" / "1"
    folder.parent.mkdir(parents=True)
    merged(folder)
    shown = store("show", tmp_path / "store")
    assert shown.returncode == 0, shown.stderr
    assert "item" in shown.stdout
    assert "user" in shown.stdout
    sound = store("verify", tmp_path / "store")
    assert (sound.returncode, "nothing is wrong" in sound.stdout) == (0, True), sound.stderr

    pages = max((folder / "pages").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(pages.read_bytes())
    data[9000] ^= 1
    pages.write_bytes(data)
    broken = store("verify", tmp_path / "store")
    assert broken.returncode == 1
    assert f"{pages}: page 1" in broken.stdout
    assert pages.read_bytes() == data, "verify changes nothing"

    repaired = store("repair", folder)
    assert repaired.returncode == 0, repaired.stderr
    assert "dropped item" in repaired.stdout
    assert store("verify", tmp_path / "store").returncode == 0
    with opened(folder) as again:
        check_rows(again, FIRST)


def test_a_folder_without_a_store_and_a_store_in_use_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = store("show", tmp_path / "empty")
    assert nothing.returncode == 1
    assert str(tmp_path / "empty") in nothing.stderr
    with opened(tmp_path / "used"):
        used = store("verify", tmp_path / "used")
    assert used.returncode == 1
    assert "another process" in used.stderr


def test_a_store_whose_server_is_only_starting_is_not_repaired(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "model" / "1"
    folder.parent.mkdir(parents=True)
    with opened(folder):
        pass
    with locked(folder.parent):
        refused = store("repair", folder)
    assert refused.returncode == 1
    assert f"({os.getpid()} on" in refused.stderr
    assert store("repair", folder).returncode == 0
