"""Claims: a delta is visible within a second, requests do not feel it, a thousand of them leave nothing behind.

A table of a million rows of 16 floats is published; `emberline serve` runs in a process of its own; deltas are made
beforehand and appear by one rename, so that the trainer's work is not measured. Our times are compared with the
machine's own limit for the same bytes: read them, hash them, copy them once.

    python -m benchmarks.live_updates              # about eight minutes
    python -m benchmarks.live_updates --quick      # about two
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delta_world import DeltaWorld
from benchmarks.machine import machine_line, rss_bytes
from benchmarks.paced_load import PacedLoad, max_rate, save_bodies, window
from storage.tiers.ssd.disk_room import bytes_below
from tests.support.server_process import ServerProcess
from trainer.publishing.policy import DeltaPolicy

ROWS = 1_000_000
BATCH = 32
WAIT_S = 60.0
WINDOW_S = 4.0
RETAIN = 4


class Bench:
    """A served model, prepared deltas, and one connection for requests."""

    def __init__(self, work: Path, rows: int) -> None:
        self.work = work
        self.world = DeltaWorld(work / "made", "ranker", rows)
        self.home = work / "models" / "ranker"
        self.home.mkdir(parents=True)
        shutil.copytree(self.world.version, self.home / "1")
        options = {"retain_snapshots": str(RETAIN)}
        entries = [f'parameters {{ key: "{key}" value {{ string_value: "{v}" }} }}\n' for key, v in options.items()]
        config = (work / "made" / "ranker" / "config.pbtxt").read_text()
        (self.home / "config.pbtxt").write_text(config + "".join(entries))
        (self.home / "1" / "deltas").mkdir()
        self.bodies = work / "bodies.npz"
        save_bodies(self.bodies, self.world.bodies(200, BATCH))

    def make(self, rows: int) -> tuple[Path, float]:
        """Prepares a delta outside the repository; returns it and the seconds that publishing it took."""
        self.world.change(rows)
        began = time.perf_counter()
        folder = self.world.publisher.publish("delta")
        return folder, time.perf_counter() - began

    def appear(self, delta: Path) -> float:
        """Renames a delta into the repository; returns the monotonic time at which it was there."""
        hidden = self.home / "1" / "deltas" / f".publish-{delta.name}"
        shutil.copytree(delta, hidden)
        began = time.monotonic()
        hidden.rename(hidden.with_name(delta.name))
        return began

    def visible(self, port: int, delta: Path, body: tuple[bytes, int]) -> float:
        """Returns milliseconds from the rename to the first answer from the delta's snapshot, over the wire."""
        answered: list[float] = []

        def ask() -> None:
            answer_from(port, delta, body)
            answered.append(time.monotonic())

        asker = threading.Thread(target=ask)
        asker.start()
        began = self.appear(delta)
        asker.join(WAIT_S)
        if not answered:
            raise TimeoutError(f"{delta} was not visible within {WAIT_S:g} s")
        return (answered[0] - began) * 1000


def answer_from(port: int, published: Path, body: tuple[bytes, int]) -> None:
    """Asks until an answer comes from the snapshot of a published folder, or a newer one."""
    snapshot = json.loads((published / "manifest.json").read_text())["snapshot"]
    headers = {"Inference-Header-Content-Length": str(body[1]), "Emberline-Min-Snapshot": snapshot}
    deadline = time.monotonic() + WAIT_S
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as connection:
        while time.monotonic() < deadline:
            connection.request("POST", "/v2/models/ranker/infer", body[0], headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return
    raise TimeoutError(f"{published} was not served within {WAIT_S:g} s")


def floor_ms(delta: Path) -> float:
    """Returns the milliseconds to read, hash and copy a delta's bytes once: no update can be faster."""
    began = time.perf_counter()
    for path in delta.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            hashlib.sha256(data).digest()
            bytearray(data)
    return (time.perf_counter() - began) * 1000


def proportion(bench: Bench, server: ServerProcess, sizes: Sequence[int], repeat: int) -> None:
    """Measures the bytes and times of deltas by their size."""
    heads = ("rows", 9), ("bytes", 12), ("bytes/row", 9), ("publish ms", 11), ("visible ms", 22), ("floor ms", 9)
    print("\n" + " ".join(f"{head:>{width}}" for head, width in (*heads, ("ratio", 6))))
    body = bench.world.bodies(1, 1)[0]
    for rows in sizes:
        found = []
        for _ in range(repeat):
            delta, seconds = bench.make(rows)
            floor = floor_ms(delta)
            found.append((bytes_below(delta), seconds * 1000, bench.visible(server.http_port, delta, body), floor))
        size, publish, visible, floor = (statistics.median(column) for column in zip(*found, strict=True))
        low, high = min(entry[2] for entry in found), max(entry[2] for entry in found)
        spread = f"{visible:.0f} ({low:.0f} to {high:.0f})"
        print(
            f"{rows:>9,} {size:>12,.0f} {size / rows:>9.1f} {publish:>11.0f} {spread:>22} {floor:>9.1f} "
            f"{visible / floor:>6.1f}"
        )


def settle(server: ServerProcess) -> None:
    """Waits until no merge is under way, so that earlier work is not measured."""
    deadline = time.monotonic() + 2 * WAIT_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{server.url}/v2/repository/models/ranker/snapshots", timeout=WAIT_S) as answer:
            staged = [entry for entry in json.loads(answer.read())["snapshots"] if entry["state"] != "base"]
        if len(staged) <= RETAIN:
            time.sleep(1)
            return
        time.sleep(0.2)
    raise TimeoutError(f"{len(staged)} snapshots are still unmerged")


def disturbance(bench: Bench, server: ServerProcess, rows: int, pairs: int) -> None:
    """Measures p99 at half of the maximum load, without and with a delta staged, switched to and one merged."""
    settle(server)
    most = max_rate(server.http_port, "ranker", bench.bodies, bench.work / "records.npy")
    deltas = [bench.make(rows)[0] for _ in range(pairs)]
    load = PacedLoad(server.http_port, "ranker", most / 2, bench.bodies, bench.work / "records.npy").start()
    time.sleep(3)
    windows = []
    for delta in deltas:
        settle(server)
        idle = time.monotonic()
        time.sleep(WINDOW_S)
        busy = bench.appear(delta)
        time.sleep(WINDOW_S)
        windows.append((idle, busy))
    records = load.stop()
    found = []
    for idle, busy in windows:
        before, during = window(records, idle, idle + WINDOW_S), window(records, busy, busy + WINDOW_S)
        found.append([float(np.percentile(part["ms"], q)) for q in (50, 99) for part in (before, during)])
    p50_idle, p50_busy, p99_idle, p99_busy = (statistics.median(column) for column in zip(*found, strict=True))
    ratios = [entry[3] / entry[2] for entry in found]
    failed = int((records["good"] == 0).sum())
    print(f"\nat {most / 2:.0f} requests/s of {BATCH} rows (half of {most:.0f}), {pairs} pairs of {WINDOW_S:g} s:")
    print(f"  p50 {p50_idle:.2f} ms idle, {p50_busy:.2f} ms with a delta of {rows:,} rows: x{p50_busy / p50_idle:.2f}")
    print(f"  p99 {p99_idle:.2f} ms idle, {p99_busy:.2f} ms: x{statistics.median(ratios):.2f} (target 1.2)")
    spread = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    print(f"      by pair: {spread}; {failed} of {len(records):,} requests failed")


def rollback(bench: Bench, server: ServerProcess, turns: int) -> None:
    """Measures the milliseconds of a rollback to each of the last snapshots, as the caller sees it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=WAIT_S)

    def call(verb: str, content: dict[str, Any]) -> float:
        began = time.perf_counter()
        connection.request("POST", f"/v2/repository/models/ranker/{verb}", json.dumps(content).encode())
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{verb} {content}: {answer.status} {text.decode()}")
        return (time.perf_counter() - began) * 1000

    print("\nrollback, milliseconds at the caller (target 10):")
    for steps in range(1, RETAIN + 1):
        times = []
        for _ in range(turns):
            times.append(call("rollback", {"steps": steps}))
            call("resume", {})
        print(f"  {steps} back: median {statistics.median(times):.2f}, largest {max(times):.2f}")


def thousand(work: Path, count: int, rows: int) -> None:
    """Applies many deltas in a row by the trainer's policy under a light load.

    Prints what failed, and what the deltas left behind.
    """
    world = DeltaWorld(work / "models", "ranker", 100_000, policy=DeltaPolicy())
    bodies, records = work / "bodies.npz", work / "records.npy"
    save_bodies(bodies, world.bodies(200, BATCH))
    body = world.bodies(1, 1)[0]
    print(f"\n{count} deltas of {rows} rows in a row, compacted and collected by the default policy:")
    heads = ("deltas", 7), ("RSS MiB", 8), ("files", 6), ("store MiB", 10), ("repository MiB", 15), ("folders", 8)
    print(" ".join(f"{head:>{width}}" for head, width in (*heads, ("visible ms", 11))))
    with ServerProcess(work / "models", work / "store", work / "server.log") as server:
        pid = server.serving_pid
        load = PacedLoad(server.http_port, "ranker", 50, bodies, records).start()
        times: list[float] = []
        for done in range(count + 1):
            if done % max(1, count // 10) == 0:
                files = len(os.listdir(f"/proc/{pid}/fd"))
                folders = sum(1 for _ in (work / "models").rglob("manifest.json"))
                sizes = [bytes_below(work / name) / 2**20 for name in ("store", "models")]
                median = statistics.median(times) if times else 0.0
                print(
                    f"{done:>7} {rss_bytes(pid) / 2**20:>8.0f} {files:>6} {sizes[0]:>10.1f} {sizes[1]:>15.1f} "
                    f"{folders:>8} {median:>11.1f}",
                    flush=True,
                )
                times.clear()
            if done < count:
                world.change(rows)
                folder = world.publisher.publish()
                began = time.monotonic()
                answer_from(server.http_port, folder, body)
                times.append((time.monotonic() - began) * 1000)
        found = load.stop()
    print(f"  {int((found['good'] == 0).sum())} of {len(found):,} requests failed meanwhile")
    for what, store in (("with its store", "store"), ("with an empty store", "another")):
        began = time.monotonic()
        with ServerProcess(work / "models", work / store, work / "server.log") as server:
            ready = time.monotonic() - began
            answer_from(server.http_port, folder, body)
        print(f"  start {what}: ready in {ready:.1f} s, at the newest snapshot")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows, deltas and repetitions")
    parser.add_argument("--short", action="store_true", help="leave out the thousand deltas")
    options = parser.parse_args()
    quick = options.quick
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), 100_000 if quick else ROWS)
        log = bench.work / "server.log"
        with ServerProcess(bench.work / "models", bench.work / "store", log, open_admin=True) as server:
            disturbance(bench, server, 10_000 if quick else 100_000, 3 if quick else 9)
            settle(server)
            rollback(bench, server, 10)
            proportion(bench, server, (1000, 10_000) if quick else (1000, 10_000, 100_000, 500_000), 3 if quick else 7)
    if options.short:
        return
    with tempfile.TemporaryDirectory() as folder:
        thousand(Path(folder), 100 if quick else 1000, 100)


if __name__ == "__main__":
    main()
