"""Publishes thousands of snapshots in a row to a server that follows: neither process may grow.

The publisher is this process, the server one of its own. Every snapshot but the last is asked for over HTTP, so that
every one is served. Half of the versions change every row and get a store of their own, the others are staged on the
store that is there. DRAM holds a part of the rows, so that stores are read while they are served.

    python -m tests.soak.publishing --deltas 8640 --versions 200 --svg growth.svg
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.delta_world import DeltaWorld
from benchmarks.live_updates import answer_from
from benchmarks.machine import machine_line, rss_bytes
from tests.soak.chart import Line, chart
from tests.support.server_process import ServerProcess
from trainer.publishing.policy import DeltaPolicy

NAME = "ranker"
ROWS = 2000
CHANGED = 50
DRAM_BYTES = 64 << 10
BATCH = 32
# The soak decides what is a version; retention bounds what is in the repository.
POLICY = DeltaPolicy(cumulative_every=0, version_every_deltas=0, version_at_share=0.0, keep_deltas=32, keep_versions=2)
# By measured quantity of a process: how far the last third of a run may be above the middle one.
SLACK = {"memory MiB": 8.0, "descriptors": 8.0, "rings": 1.0, "threads": 4.0}


class Process:
    """Samples the resources of one process.

    samples: the values, by what is watched.
    """

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self._root = Path(f"/proc/{pid}")
        self._pid = pid
        self.samples: dict[str, list[float]] = {what: [] for what in SLACK}

    def sample(self) -> None:
        """Takes one sample."""
        files = []
        for place in (self._root / "fd").iterdir():
            try:
                files.append(os.readlink(place))
            except FileNotFoundError:  # The file was closed in the meantime.
                continue
        now = {
            "memory MiB": rss_bytes(self._pid) / 2**20,
            "descriptors": len(files),
            "rings": sum("io_uring" in file for file in files),
            "threads": len(os.listdir(self._root / "task")),
        }
        for what, value in now.items():
            self.samples[what].append(float(value))

    def grown(self) -> list[str]:
        """Returns the resources that are higher in the last third of the run than in the middle one."""
        found = []
        for what, values in self.samples.items():
            before, after = middles(values)
            if after > before + SLACK[what]:
                found.append(f"{self.name}: {what} grew from {before:.0f} to {after:.0f}")
        return found

    def line(self) -> str:
        """Summarises the samples in text for people."""
        parts = []
        for what, values in self.samples.items():
            before, after = middles(values)
            parts.append(f"{what} {values[0]:.0f} at first, {before:.0f} then {after:.0f}, at most {max(values):.0f}")
        return f"{self.name}: " + "; ".join(parts)


class PublishingSoak:
    """Runs the soak.

    counts: number of versions and deltas that were published.
    published: how many had been published when each sample was taken.
    """

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self.published: list[float] = []
        self.publisher = Process("publisher", os.getpid())
        self.server: Process | None = None
        self._folder = folder
        self._world = DeltaWorld(folder / "models", NAME, ROWS, seed=seed, policy=POLICY)
        with (folder / "models" / NAME / "config.pbtxt").open("a") as config:
            config.write(f'parameters {{ key: "dram_bytes" value {{ string_value: "{DRAM_BYTES}" }} }}\n')

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that are watched."""
        return (self.publisher,) if self.server is None else (self.publisher, self.server)

    def run(self, deltas: int, versions: int, samples: int = 400) -> None:
        """Publishes that many, evenly mixed. Raises AssertionError when something grew."""
        bodies = self._world.bodies(64, BATCH)
        total = deltas + versions
        every = max(1, total // samples)
        before = self._world.version
        with ServerProcess(self._folder / "models", self._folder / "store", self._folder / "server.log") as server:
            self.server = Process("server", server.serving_pid)
            for done in range(total):
                is_version = (done + 1) * versions // total > done * versions // total
                body = bodies[done % len(bodies)]
                if is_version:  # The server takes no more deltas on the version that this one replaces.
                    answer_from(server.http_port, before, body)
                folder = self._publish(is_version)
                if not is_version:  # The request is sent while the server takes the new delta.
                    answer_from(server.http_port, before, body)
                before = folder
                if done % every == 0:
                    self.published.append(done + 1)
                    for process in self.processes:
                        process.sample()
        grown = [text for process in self.processes for text in process.grown()]
        assert not grown, "; ".join(grown)

    def _publish(self, is_version: bool) -> Path:
        every_row = is_version and self.counts["versions"] % 2 == 0
        self._world.change(ROWS if every_row else CHANGED)
        self.counts["versions" if is_version else "deltas"] += 1
        return self._world.publisher.publish("version" if is_version else "delta")


def middles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the medians of the middle third and of the last third."""
    third = len(values) // 3
    return median(values[third : 2 * third]), median(values[2 * third :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deltas", type=int, default=8640)
    parser.add_argument("--versions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw what was watched")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = PublishingSoak(Path(folder), options.seed)
        began = time.monotonic()
        try:
            soak.run(options.deltas, options.versions)
        finally:
            print(machine_line())
            did = " and ".join(f"{count:,} {what}" for what, count in soak.counts.items())
            print(f"{did} in {time.monotonic() - began:.0f} s; every snapshot was served")
            for process in soak.processes:
                print(process.line())
            if options.svg is not None:
                lines = [
                    Line(f"{process.name}, {what}", soak.published, values)
                    for what in ("memory MiB", "descriptors")
                    for process in soak.processes
                    for values in (process.samples[what],)
                ]
                options.svg.write_text(chart(lines, f"after {did}", "published"), encoding="utf-8")
    print("nothing grew")


if __name__ == "__main__":
    main()
