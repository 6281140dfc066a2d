"""Claims: a mirror brings what is published nearly as fast as its object store gives it, in bounded memory.

moto's S3 server runs in a process of its own, on the same cores; it is the slowest part, so the figures say what the
mirror adds. It checks every digest and forces files to the disk; plain obstore reads the same objects, in ranges of the
same size, so many at a time, and writes them to files.

    python -m benchmarks.mirror            # about three minutes
    python -m benchmarks.mirror --quick
    python -m benchmarks.mirror --only freshness
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.delta_world import DeltaWorld
from benchmarks.object_server import BUCKET, object_server
from storage.objects import ObjectStore
from storage.objects.fetching import PARALLEL, PIECE_BYTES
from storage.objects.mirror import RepositoryMirror
from storage.objects.published import PublishedModel

PARTS = ("download", "requests", "freshness")
ROWS, QUICK_ROWS = 2_000_000, 100_000
DELTA_ROWS = 100_000
DELTAS, QUICK_DELTAS = 10, 2
OF_PLAIN = 0.8
HOURLY = 3700
FRESH_S = 3.0
NAME = "ranker"
_MAX_S = 120.0
_WAIT_S = 60.0
_SERVER = """
import logging, sys, time
logging.getLogger("werkzeug").setLevel("ERROR")
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


def measure(run: Run) -> None:
    """Publishes a version and measures what mirrors and servers make of it."""
    with object_store() as url:
        rows = run.size(ROWS, QUICK_ROWS)
        world = DeltaWorld(run.work / "made", NAME, rows)
        model = PublishedModel(ObjectStore(url), NAME)
        model.put(world.version)
        if run.wants("download"):
            downloads(run, url)
        if run.wants("requests"):
            requests(run, url)
        if run.wants("freshness") and not run.is_late("freshness"):
            freshness(run, url, world, model)


def downloads(run: Run, url: str) -> None:
    """Compares a mirror's first download with plain obstore's, and bounds the memory of `emberline mirror`."""
    import obstore
    import obstore.store

    store = obstore.store.from_url(f"{url}/{NAME}/1", client_options={"allow_http": True})
    objects = [(entry["path"], entry["size"]) for page in obstore.list(store) for entry in page]
    size = sum(count for _, count in objects)

    def mirrored(turn: int) -> float:
        folder = run.work / f"mirror{turn}"
        mirror = RepositoryMirror(url, folder, models=[NAME])
        began = time.perf_counter()
        mirror.once()
        seconds = time.perf_counter() - began
        mirror.stop()
        shutil.rmtree(folder)
        return size / seconds

    def plain(turn: int) -> float:
        folder = run.work / f"plain{turn}"
        folder.mkdir()

        def piece(task: tuple[int, str, int, int]) -> None:
            descriptor, path, start, length = task
            os.pwrite(descriptor, memoryview(obstore.get_range(store, path, start=start, length=length)), start)

        began = time.perf_counter()
        tasks = []
        for number, (path, count) in enumerate(objects):
            descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT)
            pieces = range(0, count, PIECE_BYTES)
            tasks += [(descriptor, path, start, min(PIECE_BYTES, count - start)) for start in pieces]
        with ThreadPoolExecutor(PARALLEL) as pool:
            for _ in pool.map(piece, tasks):
                pass
        seconds = time.perf_counter() - began
        for descriptor in {task[0] for task in tasks}:
            os.close(descriptor)
        shutil.rmtree(folder)
        return size / seconds

    samples = run.interleave({"ours": mirrored, "plain obstore": plain}, max_s=_MAX_S, quiet_cores=2.0)
    claim = f"mirror of a version of {size / 1e6:,.0f} MB"
    run.report.compare(claim, samples, "plain obstore", unit="MB/s", scale=1e-6, target=OF_PLAIN)
    run.settle(samples)
    peak = _peak_bytes([sys.executable, "-m", "emberline", "mirror", url, str(run.work / "copy"), "--once", "--quiet"])
    bound = PARALLEL * PIECE_BYTES
    run.report.remark(
        f"emberline mirror: {peak / 2**20:,.0f} MiB of memory at most while it brings {size / 2**20:,.0f} MiB; "
        f"{bound / 2**20:.0f} MiB of it are for ranges under way"
    )


def requests(run: Run, url: str) -> None:
    """Counts what a server asks of the store while nothing is published."""
    seconds = 2.0 if run.quick else 20.0
    mirror = RepositoryMirror(url, run.work / "idle")
    mirror.start(mirror.find_models())
    mirror.wait_first(NAME)
    before, began = mirror.traffic.requests, time.monotonic()
    time.sleep(seconds)
    asked = (mirror.traffic.requests - before) / (time.monotonic() - began) * 3600
    mirror.stop()
    # New models and edited configurations are looked for every two minutes, more seldom than this lasts.
    run.report.pairs(
        "requests a server and hour, nothing published", [asked + 60], [HOURLY], "3,700", unit="", less_is_better=True,
        target=1.0,
    )  # fmt: skip


def freshness(run: Run, url: str, world: DeltaWorld, model: PublishedModel) -> None:
    """Measures the time from a published delta until a server answers from it, with a look each second."""
    from tests.support.server_process import ServerProcess

    taken = []
    with ServerProcess(
        url, run.work / "store", run.work / "server.log", arguments=["--mirror-dir", str(run.work / "served")]
    ) as server:
        for _ in range(QUICK_DELTAS if run.quick else DELTAS):
            world.change(DELTA_ROWS if not run.quick else DELTA_ROWS // 10)
            folder = world.publisher.publish("delta")
            snapshot = world.publisher.lineage.newest
            assert snapshot is not None
            began = time.monotonic()
            model.put(folder)
            uploaded = time.monotonic()
            while _served(server.url) != snapshot.snapshot:
                if time.monotonic() - began > _WAIT_S:
                    raise AssertionError(f"{snapshot.name} is not served after {_WAIT_S:g} s")
                time.sleep(0.01)
            taken.append((time.monotonic() - began, uploaded - began))
    total = [seconds for seconds, _ in taken]
    run.report.pairs(
        f"a delta of {DELTA_ROWS:,} rows: from the first upload to served", total, [FRESH_S] * len(total), "3 s",
        unit="s", less_is_better=True, target=1.0, note=f"upload {statistics.median(up for _, up in taken):.2f} s",
    )  # fmt: skip


def _served(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v2/repository/models/{NAME}/snapshots") as answer:
        served: Any = json.load(answer)["served"]
    return "" if served is None else str(served["id"])


def _peak_bytes(command: list[str]) -> int:
    """Returns the most memory that a command took, as it was seen fifty times a second."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = max(peak, int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024)
        time.sleep(0.02)
    if process.returncode != 0:
        raise AssertionError(f"{command} failed")
    return peak


@contextmanager
def object_store() -> Iterator[str]:
    """Runs an object store, unless EMBERLINE_TEST_STORE names one; yields the URL of an empty repository."""
    named = os.environ.get("EMBERLINE_TEST_STORE")
    if named:
        yield f"{named.rstrip('/')}/{time.time_ns()}"
        return
    with object_server(_SERVER):
        yield f"s3://{BUCKET}/models"


if __name__ == "__main__":
    script("mirror")
