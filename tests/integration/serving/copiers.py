"""Copies a published folder into place other than by one rename."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ORDERS = ("sorted", "reversed", "manifest first", "manifest last", "shuffled", "side by side")
_AT_FDCWD, _EXCHANGE = -100, 2


def files_of(folder: Path) -> list[Path]:
    """Returns the files below a folder, relative to it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def pieces(source: Path, order: str, rng: random.Random) -> Iterator[tuple[Path, int, bytes, bool]]:
    """Yields each piece to write, in order: file, offset, bytes, and whether it is the last of its file."""
    files = files_of(source)
    if order == "reversed":
        files.reverse()
    elif order == "shuffled":
        rng.shuffle(files)
    elif order.startswith("manifest"):
        manifest = Path("manifest.json")
        others = [path for path in files if path != manifest]
        files = [manifest, *others] if order == "manifest first" else [*others, manifest]
    parts: list[list[tuple[Path, int, bytes, bool]]] = []
    for path in files:
        data = (source / path).read_bytes()
        cuts = sorted({0, *(rng.randrange(len(data)) for _ in range(rng.randint(0, 2)) if data)})
        ends = [*cuts[1:], len(data)]
        parts.append([(path, a, data[a:b], b == len(data)) for a, b in zip(cuts, ends, strict=True)])
    while any(parts):
        waiting = [part for part in parts if part]
        part = rng.choice(waiting) if order == "side by side" else waiting[0]
        yield part.pop(0)


def copy_slowly(
    source: Path,
    target: Path,
    *,
    order: str,
    rng: random.Random,
    pause_s: float,
    whole_size: bool = False,
    times: bool = False,
    before_each: Callable[[], None] = lambda: None,
) -> None:
    """Writes the files of a folder in place, in pieces, with pauses of up to `pause_s`.

    whole_size: each file has its size from the start.
    times: a completed file gets the time of its source, as with cp -p and rsync -a.

    Files that are there already are overwritten; those that the source lacks are removed at the end.
    """
    begun: set[Path] = set()
    for path, offset, data, ends in pieces(source, order, rng):
        before_each()
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("r+b" if place.exists() else "w+b") as file:
            if path not in begun:
                file.truncate((source / path).stat().st_size if whole_size else 0)
                begun.add(path)
            file.seek(offset)
            file.write(data)
        if ends and times:
            shutil.copystat(source / path, place)
        time.sleep(rng.uniform(0, pause_s))
    for path in set(files_of(target)) - set(files_of(source)):
        if path.parts[0] != "deltas":
            (target / path).unlink()


def rsync(source: Path, target: Path, *, kib_per_s: int) -> None:
    """Runs the real rsync, without its temporary files and the rename at the end.

    kib_per_s: 0 means unlimited.
    """
    subprocess.run(
        ["rsync", "-a", "--inplace", "--whole-file", f"--bwlimit={kib_per_s}", f"{source}/", f"{target}/"],
        check=True,
        timeout=120,
    )


def exchange(one: Path, other: Path) -> None:
    """Exchanges the names of two files or folders atomically."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))
