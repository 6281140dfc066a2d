"""Disks that are full, read-only or broken: a clear error that names the place, no wrong row, and nothing lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.tiers.tiered import TieredStore
from tests.integration.storage.trouble import (
    FIRST,
    ROOT,
    WORLD,
    cannot_unshare,
    check_rows,
    merged,
    opened,
    run,
)

WHY_NOT = cannot_unshare()
needs_mounts = pytest.mark.skipif(bool(WHY_NOT), reason=f"no mounts of our own here: {WHY_NOT}")


def went_well(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    lines = done.stdout.splitlines()
    assert lines[-1] == "recovered", done.stdout
    return lines


@needs_mounts
def test_a_full_disk_refuses_changes_and_loses_nothing(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=8m none {tmp_path}"
    went_well(run("disk_full", str(tmp_path), before=mount, unshared=True))


def test_a_file_size_limit_refuses_changes_and_loses_nothing(tmp_path: Path) -> None:
    went_well(run("file_limit", str(tmp_path / "store")))


@needs_mounts
@pytest.mark.parametrize("name", ["read_only", "read_only_from_the_start"])
def test_a_disk_that_becomes_read_only_refuses_changes_and_loses_nothing(tmp_path: Path, name: str) -> None:
    mount = f"mount --bind {tmp_path} {tmp_path}"
    went_well(run(name, str(tmp_path), before=mount, unshared=True))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a store that this user may not open")
def test_a_store_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    opened(tmp_path / "store").close()
    for path in (tmp_path / "store").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    code = f"import os; os.setgid(65534); os.setuid(65534); from pathlib import Path; {_PERMISSION}"
    place = tmp_path
    while place != Path("/"):  # others may pass through to it
        place.chmod(place.stat().st_mode | 0o005)
        place = place.parent
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.integration.storage import trouble; {code}", str(tmp_path / "store")],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "refused: " in went_well(done)[0]
    with opened(tmp_path / "store") as store:
        check_rows(store, FIRST)


_PERMISSION = "import sys; trouble.permission_lost(sys.argv[1])"


@pytest.mark.slow
@pytest.mark.parametrize("sound", ["closed", "killed"])
def test_damaged_files_give_right_rows_or_an_error_and_never_a_crash(tmp_path: Path, sound: str) -> None:
    merged(tmp_path / "closed", tmp_path / "killed")
    lines = went_well(run("damaged_one_by_one", str(tmp_path / "scratch"), str(tmp_path / sound)))
    rows = [line for line in lines if line.split(" ")[0].endswith((".sst", ".pages"))]
    assert rows, f"no file of rows was damaged: {lines}"
    assert any("refused" in line for line in rows)


def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    code = (
        "import sys; from pathlib import Path; from tests.integration.storage.trouble import *\n"
        "store = opened(Path(sys.argv[1])); print('open', flush=True); sys.stdin.readline()\n"
        "check_rows(store, FIRST); print('read', flush=True); sys.stdin.readline()"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert first.stdin is not None
    assert first.stdout is not None
    assert first.stdout.readline() == "open\n"
    before = {path: path.stat().st_size for path in folder.rglob("*") if path.suffix in (".sst", ".pages")}
    for _ in range(3):
        with pytest.raises(StoreError, match="another process") as caught:
            TieredStore.open(folder, WORLD.specs(), dram_bytes=0)
        assert str(folder) in str(caught.value)
    assert before == {path: path.stat().st_size for path in folder.rglob("*") if path.suffix in (".sst", ".pages")}
    first.stdin.write("\n")
    first.stdin.flush()
    assert first.stdout.readline() == "read\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdin.close()
    first.stdout.close()
    with opened(folder) as store:  # the dead hold nothing
        check_rows(store, FIRST)


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreError, match=str(tmp_path / "store")):
        TieredStore.open(tmp_path / "store", WORLD.specs(), dram_bytes=0)


def test_a_folder_that_is_gone_while_open_is_an_error_and_not_a_wrong_row(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    check_rows(store, FIRST)  # what is open stays readable
    with pytest.raises(StoreError, match=str(tmp_path / "store")):
        store.merge(store.stage(WORLD.change(FIRST, 1)[1]), at="1" * 32)
    with contextlib.suppress(StoreError):  # it may say that nothing could be written any more
        store.close()
    assert store.overlay_tables == []  # and has let go of its memory all the same


def test_what_the_system_refuses_to_open_is_not_called_damaged(tmp_path: Path) -> None:
    went_well(run("few_descriptors", str(tmp_path / "store")))


def test_where_no_thread_can_be_started_the_process_lives_and_says_so(tmp_path: Path) -> None:
    script = (
        "import os, resource, sys; from pathlib import Path;"
        "from storage.errors import StoreError; from storage.tiers.ssd.tier import SsdTier;\n"
        "if os.getuid() == 0: os.setuid(65534)\n"  # the limit does not hold for root
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n"
        "try: SsdTier.open(Path(sys.argv[1]))\n"
        "except StoreError as error: print(error)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "s")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no more threads; raise the limit" in done.stdout
