"""Builds the preloaded library of `inject.c`, and controls it in a process that was started with it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("inject.c")
_SLOW_READS = Path(__file__).with_name("slow_reads.c")
SHORT = -1

# Faults of each kind of call. SHORT: half of the bytes are moved, which is no error.
FAULTS: dict[str, tuple[int, ...]] = {
    "open": (errno.EIO, errno.EMFILE, errno.ESTALE),
    "create": (errno.EIO, errno.ENOSPC),
    "read": (errno.EIO, errno.ESTALE, SHORT),
    "write": (errno.EIO, errno.ENOSPC, SHORT),
    "sync": (errno.EIO,),
    "rename": (errno.EIO, errno.ENOSPC),
    "link": (errno.EIO, errno.ENOSPC),
    "unlink": (errno.EIO,),
    "mkdir": (errno.EIO, errno.ENOSPC),
    "stat": (errno.EIO, errno.ESTALE),
    "list": (errno.EIO, errno.EMFILE),
    "map": (errno.EIO,),
    "truncate": (errno.EIO, errno.ENOSPC),
    "lock": (errno.EIO,),
}


@dataclass(frozen=True, order=True)
class Call:
    """The `nth` call of a kind on a path; the first is 1."""

    kind: str
    path: str
    nth: int


def compiler() -> str | None:
    """Returns the C compiler of this machine, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")


def build(folder: Path, source: Path = SOURCE) -> Path:
    """Compiles a library to be preloaded into a folder. Raises CalledProcessError with the compiler's output."""
    library = folder / f"{source.stem}.so"
    found = compiler()
    assert found is not None, "no C compiler"
    command = [found, "-x", "c", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE"]
    subprocess.run([*command, "-o", str(library), str(source), "-ldl", "-lpthread"], check=True)
    return library


def environment(library: Path, others: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a process that is to be started with the library."""
    return {**os.environ, "LD_PRELOAD": str(library), **(others or {})}


def slow_reads(folder: Path, switch: Path, ms: int) -> dict[str, str]:
    """Returns the environment of a process whose reads take some milliseconds more while the file `switch` is there.

    folder: where the library is built; see slow_reads.c.
    """
    library = build(folder, _SLOW_READS)
    return environment(library, {"SLOW_READS_WHILE": str(switch), "SLOW_READS_MS": str(ms)})


class Injector:
    """The library that is loaded into this process. Raises AttributeError where it is not."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.inject_fired.restype = ctypes.c_long
        self._library.inject_arm.argtypes = [
            *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int),
        ]

    def watch(self, folders: Sequence[Path]) -> None:
        """Counts only calls on files in these folders; with no folders, counts nothing."""
        self._library.inject_watch(":".join(os.path.realpath(folder) for folder in folders).encode())

    def arm(self, call: Call, error: int, *, times: int = 1) -> None:
        """Makes `times` calls of this kind on this path fail from this call on, with an errno, or be SHORT."""
        self._library.inject_arm(call.kind.encode(), call.path.encode(), 1, call.nth, times, error)

    def disarm(self) -> None:
        """Lets every call through."""
        self._library.inject_arm(b"", b"", 0, 1, 0, 0)

    @property
    def fired(self) -> int:
        """Number of calls that were changed since `arm`."""
        return int(self._library.inject_fired())

    def log_to(self, descriptor: int) -> None:
        """Lists each watched call to the descriptor; -1 lists nothing."""
        self._library.inject_log(descriptor)

    def forbid_uring(self) -> None:
        """Refuses io_uring from now on, so that the reads that it would make are made by pread."""
        self._library.inject_forbid_uring(1)


def listed(log: Path) -> list[Call]:
    """Returns the calls of a log, each with its occurrence among those of its kind and path."""
    seen: dict[tuple[str, str], int] = {}
    calls: list[Call] = []
    for line in log.read_text().splitlines():
        kind, _, path = line.partition("\t")
        seen[kind, path] = nth = seen.get((kind, path), 0) + 1
        calls.append(Call(kind, path, nth))
    return calls
