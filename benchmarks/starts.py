"""Claim: a restart takes 4 s whatever the size of the model, and a first load is bound by hashing and by the disk.

Publishes a version of 20 M rows of 32 floats (2.6 GB) and one of 22,506 rows, and starts `emberline serve` on them as
a user does: once with an empty store, then again after kill -9, with a DRAM budget of 256 MiB and with none. The time
runs from the start of the process until /v2/health/ready answers 200. With each time it prints the processor time that
the server's processes took until then, which other work on the machine disturbs less; with the first load, the time
that its digests and its writes take alone; and with a restart, the time that `import torch` takes. Until DRAM is
filled (`filled`) more lookups read from the disk.

    python -m benchmarks.starts                                    # about ten minutes; 8 GB on the disk
    python -m benchmarks.starts --quick                            # 1 M rows
    python -m benchmarks.starts --before /other/checkout/.venv/bin/python   # another build in turn with this one
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from benchmarks.machine import machine_line
from benchmarks.starts_world import DIM, NAME, publish, set_budget
from tests.support.server_process import free_ports

ROWS, QUICK_ROWS, SMALL_ROWS = 20_000_000, 1_000_000, 22_506
BUDGET = "256MiB"
READY_S = 600.0
_LOOK_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")
_BLOCK = 16 << 20


@dataclass(frozen=True)
class Start:
    """The times of one start of a server."""

    #: Seconds of wall clock until it was ready.
    wall_s: float
    #: Seconds of processor time until it was ready.
    cpu_s: float
    #: Seconds until DRAM took no more rows; 0 when not waited for.
    filled_s: float = 0.0


class Figures:
    """Samples by what was measured and by whose build."""

    def __init__(self) -> None:
        self.starts: dict[tuple[str, str], list[Start]] = defaultdict(list)

    def add(self, what: str, whose: str, start: Start) -> None:
        """Keeps a sample and prints it."""
        self.starts[what, whose].append(start)
        filled = f", DRAM filled after {start.filled_s:.1f} s" if start.filled_s else ""
        print(
            f"  {what:<44} {whose:<7} {start.wall_s:6.2f} s, {start.cpu_s:6.2f} s of processor time{filled}", flush=True
        )

    def lines(self) -> Iterator[str]:
        """Yields the lines of a table: medians with the least and the greatest."""
        yield f"{'':<46}{'wall s':>22}{'processor s':>22}{'DRAM filled s':>22}"
        for (what, whose), samples in self.starts.items():
            columns = ([s.wall_s for s in samples], [s.cpu_s for s in samples], [s.filled_s for s in samples])
            yield f"{what + ', ' + whose:<46}" + "".join(f"{_spread(values):>22}" for values in columns)
        for what in dict.fromkeys(what for what, _ in self.starts):
            now, before = self.starts.get((what, "now")), self.starts.get((what, "before"))
            if now and before:
                wall = statistics.median(s.wall_s for s in before) / statistics.median(s.wall_s for s in now)
                cpu = statistics.median(s.cpu_s for s in before) / statistics.median(s.cpu_s for s in now)
                yield f"{what}: {wall:.1f} times faster, {cpu:.1f} times less processor time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a million rows, two repeats")
    parser.add_argument("--rows", type=int, help="rows of the large version (default 20 M)")
    parser.add_argument("--repeats", type=int, help="restarts of each kind (default 5)")
    parser.add_argument("--loads", type=int, help="first loads (default 3)")
    parser.add_argument("--before", type=Path, help="the Python of another installation, measured in turn with this")
    parser.add_argument("--work", type=Path, help="where versions and stores are written (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the samples here too")
    options = parser.parse_args()
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    repeats = options.repeats or (2 if options.quick else 5)
    loads = options.loads or (1 if options.quick else 3)
    builds = {"now": Path(sys.executable)}
    if options.before is not None:
        builds = {"before": options.before, **builds}
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        figures = measure(Path(folder), rows, repeats, loads, builds)
    if options.json:
        samples = [
            {"what": what, "whose": whose, **vars(s)} for (what, whose), all_ in figures.starts.items() for s in all_
        ]
        options.json.write_text(json.dumps(samples, indent=2) + "\n")


def measure(work: Path, rows: int, repeats: int, loads: int, builds: dict[str, Path]) -> Figures:
    """Runs all measurements and prints them."""
    print(machine_line())
    large, small = work / "large", work / "small"
    print(f"publishing {rows:,} and {SMALL_ROWS:,} rows of {DIM} floats", flush=True)
    size = sum(path.stat().st_size for path in (publish(large, rows) / "tables").iterdir())
    publish(small, SMALL_ROWS)
    figures = Figures()
    for _ in range(repeats):
        for whose, python in builds.items():
            figures.add("import torch", whose, _import_torch(python))
    name = f"{rows / 1e6:g} M rows"
    for budget in (BUDGET, None):
        set_budget(large, budget)
        words = f"{name}, {'a budget of ' + budget if budget else 'all in DRAM'}"
        for whose, python in builds.items():
            store = work / f"store-{whose}"
            for number in range(loads if budget else 1):
                shutil.rmtree(store, ignore_errors=True)
                figures.add(f"first load, {words}", whose, start(python, large, store, filled=number == 0))
        for number in range(repeats):
            for whose, python in builds.items():
                again = start(python, large, work / f"store-{whose}", filled=number == 0)
                figures.add(f"after kill -9, {words}", whose, again)
        for whose in builds:
            shutil.rmtree(work / f"store-{whose}")
    for number in range(repeats + 1):
        for whose, python in builds.items():
            again = start(python, small, work / f"small-{whose}")
            figures.add(f"{'after kill -9' if number else 'first load'}, {SMALL_ROWS:,} rows", whose, again)
    print()
    for line in (*figures.lines(), *_limits(work, large / NAME / "1" / "tables", size)):
        print(line)
    return figures


def start(python: Path, repository: Path, store: Path, *, filled: bool = False) -> Start:
    """Starts a server, waits until it is ready, and kills it. filled: also waits until DRAM takes no more rows."""
    http, grpc, metrics = free_ports(3)
    command = [
        *(str(python), "-m", "emberline", "serve", "--model-repository", str(repository), "--store", str(store)),
        *("--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)),
    ]
    log = store.with_name(f"{store.name}.log")
    began = time.monotonic()
    with log.open("w") as output, _killed(_popen(command, store.parent, output)) as process:
        while not _is_ready(http):
            if process.poll() is not None or time.monotonic() - began > READY_S:
                raise SystemExit(f"the server did not become ready; its log:\n{log.read_text()}")
            time.sleep(_LOOK_S)
        ready = time.monotonic() - began
        cpu = sum(_cpu_s(pid) for pid in _tree(process.pid))
        return Start(ready, cpu, _filled(metrics) - began if filled else 0.0)


def _popen(command: list[str], folder: Path, output: TextIO) -> subprocess.Popen[bytes]:
    # The working directory is not this checkout: Python would import its modules in place of the other build's.
    return subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)


@contextmanager
def _killed(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()  # its children end with it
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
        return True
    except OSError:
        return False


def _filled(port: int) -> float:
    """Returns when DRAM had its final number of rows: the number did not change for two seconds."""
    last, since = -1.0, time.monotonic()
    while time.monotonic() - since < 2.0:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
        rows = sum(float(line.split()[-1]) for line in page.splitlines() if _counts_dram(line))
        if rows != last:
            last, since = rows, time.monotonic()
        time.sleep(0.05)
    return since


def _counts_dram(line: str) -> bool:
    return line.startswith("emberline_tier_rows{") and 'tier="dram"' in line


def _tree(pid: int) -> list[int]:
    """Returns a process and its descendants, parents first."""
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]
    return [pid, *(found for child in children for found in _tree(child))]


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _import_torch(python: Path) -> Start:
    began, before = time.monotonic(), os.times()
    subprocess.run([str(python), "-c", "import torch"], check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Start(time.monotonic() - began, cpu)


def _limits(work: Path, tables: Path, size: int) -> Iterator[str]:
    """Yields how fast the machine hashes on all cores and writes, and how long `size` bytes take at that rate."""
    files = sorted(tables.iterdir())
    cores = len(os.sched_getaffinity(0))
    hashing = statistics.median(_hash_s(files, cores) for _ in range(3))
    block = np.random.default_rng(1).bytes(_BLOCK)
    path = work / "written"
    began = time.monotonic()
    with path.open("wb") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    writing = time.monotonic() - began
    path.unlink()
    yield f"SHA-256 of {size / 1e9:.2f} GB, {cores} threads: {hashing:.2f} s, {size / 1e9 / hashing:.2f} GB/s"
    yield f"writing {size / 1e9:.2f} GB and forcing them to the disk: {writing:.2f} s, {size / 1e9 / writing:.2f} GB/s"


def _hash_s(files: list[Path], cores: int) -> float:
    left = list(files)

    def work() -> None:
        while left:
            try:
                path = left.pop()
            except IndexError:
                return
            with path.open("rb", buffering=0) as file:
                hashlib.file_digest(file, "sha256")

    threads = [threading.Thread(target=work) for _ in range(cores)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began


def _spread(values: list[float]) -> str:
    values = [value for value in values if value]
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
