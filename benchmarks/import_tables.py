"""Claims: tables of HPS are imported at 0.7 of the speed at which the disk takes their bytes, in 1 GiB of memory.

The files hold ids in random order. `emberline import hps` runs as a command of its own: it sorts the rows, writes and
hashes them, makes golden requests, and forces everything to the disk. What it takes for a table of a hundred rows, most
of it torch being loaded, is subtracted, and reported. It is compared with a plain sequential write of as many bytes,
which is forced to the disk, too.

    python -m benchmarks.import_tables            # 10 M rows of 64 values: about three minutes, 9 GB of disk
    python -m benchmarks.import_tables --quick
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dram_world import rows_of_numbers
from benchmarks.gauge import QUIET_CORES_DISK
from benchmarks.traffic import random_ids

DIM = 64
OF_DISK = 0.7
MEMORY_BYTES = 1 << 30
ROWS, QUICK_ROWS = 10_000_000, 300_000
FEW_ROWS = 100
_BLOCK_ROWS = 1 << 16
_PIECE_BYTES = 8 << 20
_MAX_S = 240.0


def measure(run: Run) -> None:
    """Measures two claims."""
    rows = run.size(ROWS, QUICK_ROWS)
    size = rows * (8 + 4 * DIM + 1)
    few = write_hps(run.work / "few.model", FEW_ROWS)
    many = write_hps(run.work / "many.model", rows)
    fixed: list[float] = []
    peaks: list[int] = []

    def ours(turn: int) -> float:
        seconds, _ = imported(few, run.work / "models")
        fixed.append(seconds)
        whole, peak = imported(many, run.work / "models")
        peaks.append(peak)
        return size / max(1e-9, whole - seconds)

    samples = run.interleave(
        {"ours": ours, "sequential write": lambda turn: sequential(run.work / "plain", size)},
        max_s=_MAX_S,
        quiet_cores=QUIET_CORES_DISK,
    )
    claim = f"import of {rows:,} HPS rows of {DIM} values in random order"
    run.report.compare(claim, samples, "sequential write", unit="MB/s", scale=1e-6, target=OF_DISK)
    run.report.pairs(
        f"memory of the command, {claim}",
        [peak / 2**20 for peak in peaks],
        [MEMORY_BYTES / 2**20] * len(peaks),
        "bound",
        unit="MiB",
        less_is_better=True,
        target=1.0,
    )
    if fixed:
        run.report.remark(f"a table of {FEW_ROWS} rows takes {np.median(fixed):.1f} s, which are subtracted")
    run.settle(samples)


def write_hps(folder: Path, rows: int) -> Path:
    """Writes a table as HugeCTR does, and returns its folder."""
    folder.mkdir()
    ids = random_ids(rows)
    ids.tofile(folder / "key")
    with (folder / "emb_vector").open("wb") as file:
        for start in range(0, rows, _BLOCK_ROWS):
            rows_of_numbers(np.arange(start, min(start + _BLOCK_ROWS, rows)), DIM).tofile(file)
    os.sync()
    return folder


def imported(table: Path, repository: Path) -> tuple[float, int]:
    """Imports a table by the command; returns seconds, and the bytes of memory that it took at most."""
    command = [sys.executable, "-m", "emberline", "import", "hps", str(table), "--quiet"]
    began = time.perf_counter()
    child = subprocess.Popen([*command, "--repository", str(repository), "--name", "many"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise AssertionError(f"the import ended with {child.returncode}")
    shutil.rmtree(repository)
    return seconds, usage.ru_maxrss * 1024


def sequential(path: Path, size: int) -> float:
    """Returns the bytes a second that the disk takes, forced to it at the end."""
    piece = np.random.default_rng(0).integers(0, 256, _PIECE_BYTES, np.uint8)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, _PIECE_BYTES):
            file.write(piece[: min(_PIECE_BYTES, size - start)].data)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return size / seconds


if __name__ == "__main__":
    script("import_tables")
