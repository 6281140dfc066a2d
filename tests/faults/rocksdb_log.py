"""A process in which writes to RocksDB's logs fail when the test says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class LogFaults:
    """Schedules faults for the process that runs with `environment`; `rocksdb_log.c` makes them happen."""

    def __init__(self, folder: Path) -> None:
        self._faults = folder / "faults"
        self._faults.touch()
        self._library = folder / "rocksdb_log.so"
        compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, Path(__file__).with_suffix(".c"), "-ldl"]
        subprocess.run([str(each) for each in command], check=True)

    @property
    def left(self) -> int:
        """Number of scheduled faults that have not happened yet."""
        return self._faults.stat().st_size

    def environment(self) -> dict[str, str]:
        """Returns the environment with which the process has to be started."""
        return {**os.environ, "LD_PRELOAD": str(self._library), "FAULTS": str(self._faults)}


def fail(times: int) -> None:
    """Makes the next `times` writes to RocksDB's logs fail; called in the process that `environment` was given to."""
    Path(os.environ["FAULTS"]).write_bytes(b"." * times)


def run_with_log_faults(folder: Path, module: str, function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a function of a module in a process in which it may call `fail`."""
    code = f"from {module} import {function}; {function}(*{list(arguments)!r})"
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env=LogFaults(folder).environment(),
    )
