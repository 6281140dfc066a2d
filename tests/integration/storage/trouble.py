"""Writes to a store on a disk that fails; each function runs in a process of its own.

Every function ends with the disk well again, everything as it should be, and the word "recovered" on standard output.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.planted_rows import PlantedRows, PlantedState
from storage.errors import CorruptStoreError, StoreError
from storage.features import Jagged
from storage.specs import LookupSpec
from storage.tiers.limits import StoreLimits
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.tiered import TieredStore

ROOT = Path(__file__).parents[3]
WORLD = PlantedRows({"item": (16, 12_000), "user": (4, 2_000)}, seed=5)
FIRST = WORLD.first()
BUDGET = 40_000  # Most rows are only on the disk.
FULL = r"No space left|File too large|disk is full|disk full"
READ_ONLY = r"[Rr]ead-only|Permission denied|Operation not permitted"


STATES = {WORLD.version(FIRST).snapshot: FIRST}


def merged(folder: Path, killed: Path | None = None) -> None:
    """Makes a store with some deltas in it, and closes it.

    killed: gets a copy of the store as it was before it was closed.
    """
    state = FIRST
    with opened(folder) as store:
        for generation in range(1, 4):
            state, delta = WORLD.change(state, generation, one_in=(2, 7, 50)[generation % 3])
            store.merge(store.stage(delta, spill=generation % 2 == 0), at=delta.snapshot)
            store.set_markers({"word": str(generation)})
        check_rows(store, state)
        if killed is not None:
            copy_while_open(folder, killed)


def states() -> None:
    """Fills STATES with the states that `merged` goes through."""
    state = FIRST
    for generation in range(1, 4):
        state, delta = WORLD.change(state, generation, one_in=(2, 7, 50)[generation % 3])
        STATES[delta.snapshot] = state


def last_state() -> PlantedState:
    """Returns the state that `merged` leaves."""
    states()
    return list(STATES.values())[-1]


def copy_while_open(folder: Path, to: Path) -> None:
    """Copies a store that is open; when a compaction removes files during the copy, starts over."""
    for _ in range(20):
        try:
            shutil.copytree(folder, to)
            return
        except shutil.Error:
            shutil.rmtree(to)
    raise AssertionError(f"{folder} does not hold still")


def opened(folder: Path) -> TieredStore:
    # No space is kept in reserve: the disk itself has to become full.
    limits = StoreLimits(ssd=SsdOptions(reserve_bytes=0))
    store = TieredStore.open(folder, WORLD.specs(), dram_bytes=BUDGET, limits=limits)
    store.load(WORLD.version(FIRST))
    return store


def check_rows(store: TieredStore, state: PlantedState, mask: int = 0) -> None:
    """Asserts that every id, found or absent, is as the state has it."""
    for name, ids in WORLD.ids.items():
        plan = store.plan([LookupSpec("x", name, "none", 1)])
        result = plan.lookup(len(ids), [Jagged(ids, np.arange(len(ids) + 1))], mask=mask)
        rows, found = WORLD.expected(state, name, np.arange(len(ids)))
        flags = result.masks[0]
        assert flags is not None
        assert np.array_equal(flags[:, 0] == 1, found)
        assert np.array_equal(result.outputs[0][:, 0], rows)


def goes_wrong_and_recovers(folder: Path, break_it: Callable[[], None], mend_it: Callable[[], None], why: str) -> None:
    """Writes until the disk refuses, goes on reading, and goes on writing when the disk is well again."""
    store = opened(folder)
    check_rows(store, FIRST)
    break_it()
    state, at, overlay, refused = FIRST, store.at, -1, ""
    # Staging in memory, staging on the disk, merging, recording: each is refused at some time, or succeeds.
    for generation in range(1, 60):
        after, delta = WORLD.change(state, generation, one_in=2)
        try:
            overlay = -1
            overlay = store.stage(delta, spill=generation % 2 == 0)
            check_rows(store, after, 1 << overlay)
            store.merge(overlay, at=delta.snapshot, markers={"generation": str(generation)})
            state, at = after, delta.snapshot
            store.set_markers({"word": "x" * 20_000})
        except StoreError as error:
            refused = str(error)
        check_rows(store, state)
        assert store.at == at
        if refused:
            break
    assert refused, "the disk never refused anything"
    assert re.search(why, refused), f"the error does not say why: {refused}"
    assert str(folder) in refused, f"the error does not say where: {refused}"
    print("refused:", refused)
    if overlay >= 0 and at != delta.snapshot:
        check_rows(store, after, 1 << overlay)  # The staged rows are still there.
    mend_it()
    if at != delta.snapshot:
        if overlay < 0:
            overlay = store.stage(delta)
        store.merge(overlay, at=delta.snapshot, markers={"generation": str(generation)})
        state, at = after, delta.snapshot
    store.set_markers({"word": "recovered"})
    check_rows(store, state)
    store.close()
    store = opened(folder)
    assert store.at == at
    assert store.marker("generation") == str(generation)
    assert store.marker("word") == "recovered"
    check_rows(store, state)
    store.close()
    print("recovered")


def disk_full(mount: str) -> None:
    """Fills a small file system of its own to the last page."""
    ballast = Path(mount) / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
            file.truncate(max(0, file.tell() - (600 << 10)))

    goes_wrong_and_recovers(Path(mount) / "store", fill, ballast.unlink, FULL)


def file_limit(folder: str) -> None:
    """Limits the size that any file may grow to, which has the effect of a quota."""

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    goes_wrong_and_recovers(Path(folder), lambda: limit(100_000), lambda: limit(resource.RLIM_INFINITY), FULL)


def read_only(mount: str) -> None:
    """Mounts the file system read-only over an open store; files that are open may still be written."""

    def cover() -> None:
        # A mount with open files cannot be made read-only; one that is mounted over it can.
        subprocess.run(["mount", "--bind", mount, mount], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", mount], check=True)

    def uncover() -> None:
        subprocess.run(["umount", mount], check=True)

    goes_wrong_and_recovers(Path(mount) / "store", cover, uncover, READ_ONLY)


def read_only_from_the_start(mount: str) -> None:
    """Checks that a store that cannot be written at all is refused when it is opened."""
    folder = Path(mount) / "store"
    opened(folder).close()
    subprocess.run(["mount", "-o", "remount,bind,ro", mount], check=True)
    refused_to_open(folder, READ_ONLY)
    subprocess.run(["mount", "-o", "remount,bind,rw", mount], check=True)
    store = opened(folder)
    check_rows(store, FIRST)
    store.close()
    print("recovered")


def permission_lost(folder: str) -> None:
    """Opens, as another user, a store that root has made."""
    refused_to_open(Path(folder), READ_ONLY)
    print("recovered")


def refused_to_open(folder: Path, why: str) -> None:
    refused = outcome(lambda: opened(folder).close())
    assert re.search(why, refused), f"it was opened, or the error does not say why: {refused!r}"
    assert str(folder) in refused, f"the error does not say where: {refused}"
    print("refused:", refused)


def outcome(call: Callable[[], None], kind: type[StoreError] = StoreError) -> str:
    """Returns the text of the StoreError that the call raises, or "" without one."""
    try:
        call()
    except kind as error:
        return str(error)
    return ""


def few_descriptors(folder: str) -> None:
    """Opening a store with too few descriptors does not report damage, and succeeds with enough of them."""
    merged(Path(folder))
    refused = 0
    for more in range(40):
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            TieredStore.open(Path(folder), WORLD.specs(), dram_bytes=BUDGET).close()
        except CorruptStoreError as error:
            raise AssertionError(f"with {more} descriptors it is called damaged") from error
        except StoreError as error:
            refused += 1
            print(f"{more} refused: {error}")
    assert refused > 3
    with opened(Path(folder)) as store:
        check_rows(store, last_state())
    print("recovered")


def damaged(folder: Path) -> None:
    """Opens and reads a damaged store, and prints the result; a signal ends it only when the native code is wrong."""

    def read() -> None:
        store = TieredStore.open(folder, WORLD.specs(), dram_bytes=BUDGET)
        try:
            at = store.at
            store.load(WORLD.version(FIRST))
            assert at in (store.at, "")
            # The latest changes may be lost; the store reports that, and holds one earlier snapshot throughout.
            check_rows(store, STATES[store.at])
        finally:
            store.close()

    refused = outcome(read, CorruptStoreError)
    assert not refused or str(folder) in refused, f"the error does not say where: {refused}"
    print("refused: " + refused if refused else "right rows")


def damaged_one_by_one(scratch: str, sound: str) -> None:
    """Damages every file of a sound store in every way, one at a time."""
    states()
    for path in sorted(path for path in Path(sound).rglob("*") if path.is_file()):
        name = path.relative_to(sound)
        for how, change in DAMAGES.items():
            copy = Path(scratch) / "store"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(sound, copy)
            change(copy / name)
            print(f"{name} {how}: ", end="", flush=True)
            damaged(copy)
    print("recovered")


def _truncate(share: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    return change


def _flip(share: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        if data:
            data[min(len(data) - 1, int(len(data) * share))] ^= 0x40
            path.write_bytes(data)

    return change


def _zero(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(min(4096, size - size // 2)))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "emptied": _truncate(0.0),
    "cut in half": _truncate(0.5),
    "without its end": _truncate(0.999),
    "a bit flipped at the start": _flip(0.001),
    "a bit flipped in the middle": _flip(0.5),
    "a bit flipped near the end": _flip(0.99),
    "zeroed in the middle": _zero,
    "deleted": Path.unlink,
}


def run(
    name: str, *arguments: str, before: str = "", unshared: bool = False, module: str = __name__
) -> subprocess.CompletedProcess[str]:
    """Runs a function of a module in a process of its own.

    before: shell commands to run first.
    unshared: run in a mount namespace.
    """
    code = f"from {module} import {name}; {name}(*{list(arguments)!r})"
    command = [sys.executable, "-c", code]
    if unshared:
        inner = before + ' && exec "$@"'
        users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        command = ["unshare", *users, "--mount", "sh", "-c", inner, "sh", *command]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=300)


def cannot_unshare() -> str:
    """Returns why this machine cannot give a process a mount namespace; empty where it can."""
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    try:
        done = subprocess.run(
            ["unshare", *users, "--mount", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"],
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or "unshare failed"
