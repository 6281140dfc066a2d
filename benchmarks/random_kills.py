"""Claim: kill -9 at any moment of an update leaves a server that comes back at exactly one snapshot and goes on.

A delta of a million rows appears; after a random time the server is killed; it is started again and asked. Its answers
must be those of the snapshot that it names, to the last row asked, and it must go on to the newest.

    python -m benchmarks.random_kills              # 20 kills, a million rows: about eight minutes
    python -m benchmarks.random_kills --quick      # 4 kills, 50,000 rows
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.delta_world import DENSE, LENGTH, DeltaWorld
from benchmarks.machine import machine_line
from loadtest.bodies import json_body
from loadtest.rows import Tensor
from tests.support.server_process import ServerProcess

TOLERANCE = 1e-5
ASKED = 200
WAIT_S = 120.0


class Kills:
    """A world, its served copy, and the answers of each of its snapshots to the same rows."""

    def __init__(self, work: Path, rows: int, *, seed: int = 3) -> None:
        self.work, self.rows = work, rows
        self.world = DeltaWorld(work / "made", "ranker", rows, seed=seed)
        self.rng = np.random.default_rng(seed)
        self.home = work / "models" / "ranker"
        shutil.copytree(self.world.version.parent, self.home)
        option = 'parameters { key: "%s" value { string_value: "%s" } }\n'
        with (self.home / "config.pbtxt").open("a") as config:
            config.write(option % ("retain_snapshots", "1") + option % ("live_guard", "false"))
        self.deltas = self.home / "1" / "deltas"
        self.deltas.mkdir(exist_ok=True)
        self.ids = self.rng.integers(0, rows, (ASKED, LENGTH))
        self.dense = self.rng.standard_normal((ASKED, DENSE)).astype(np.float32)
        self.scores = {self._snapshot(self.world.version): self._score()}

    def make(self, rows: int) -> Path:
        """Prepares a delta outside the repository, and notes the answers it must give."""
        self.world.change(rows)
        folder = self.world.publisher.publish("delta")
        self.scores[self._snapshot(folder)] = self._score()
        return folder

    def appear(self, delta: Path) -> str:
        """Renames a delta into the repository; returns its snapshot."""
        hidden = self.deltas / f".publish-{delta.name}"
        shutil.copytree(delta, hidden)
        hidden.rename(self.deltas / delta.name)
        return self._snapshot(delta)

    def server(self) -> ServerProcess:
        """Starts a server over the same store."""
        return ServerProcess(self.work / "models", self.work / "store", self.work / "server.log")

    def check(self, server: ServerProcess) -> str:
        """Asks the server; returns the snapshot that answered.

        Raises AssertionError when the answer is not that snapshot's.
        """
        body = json_body([Tensor("items", "INT64", self.ids), Tensor("dense", "FP32", self.dense)])
        request = urllib.request.Request(
            f"{server.url}/v2/models/ranker/infer", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: dict[str, Any] = json.loads(answer.read())
        snapshot = str(content["parameters"]["snapshot"])
        scores = np.array(content["outputs"][0]["data"]).reshape(-1)
        difference = float(np.abs(scores - self.scores[snapshot]).max())
        if not difference <= TOLERANCE:
            raise AssertionError(f"{snapshot} answers {difference:.3g} away from what it must")
        return snapshot

    def reaches(self, server: ServerProcess, snapshot: str) -> None:
        """Waits until a snapshot answers; every answer before it must belong to some snapshot."""
        deadline = time.monotonic() + WAIT_S
        while self.check(server) != snapshot:
            if time.monotonic() > deadline:
                raise AssertionError(f"{snapshot} is not served after {WAIT_S:g} s")
            time.sleep(0.02)

    def _score(self) -> np.ndarray[Any, Any]:
        inputs = {
            "items.values": torch.from_numpy(self.ids.reshape(-1)),
            "items.offsets": torch.arange(0, ASKED * LENGTH + 1, LENGTH),
            "dense": torch.from_numpy(self.dense),
        }
        with torch.inference_mode():
            return np.asarray(self.world.module(inputs)["score"].numpy().reshape(-1).astype(np.float64))

    @staticmethod
    def _snapshot(folder: Path) -> str:
        return str(json.loads((folder / "manifest.json").read_text())["snapshot"])


def run(kills: Kills, count: int, changed: int) -> Counter[str]:
    """Kills `count` servers during an update of `changed` rows each; returns where each of them came back."""
    found: Counter[str] = Counter()
    with kills.server() as server:
        kills.reaches(server, next(iter(kills.scores)))
        delta = kills.make(changed)
        began = time.monotonic()
        newest = kills.appear(delta)
        kills.reaches(server, newest)
        longest = 2.0 * (time.monotonic() - began) + 0.5  # staging and switch, then the merge of the previous one
    for turn in range(count):
        delta = kills.make(changed)
        with kills.server() as server:
            before = newest
            kills.reaches(server, before)
            newest = kills.appear(delta)
            after_s = float(kills.rng.uniform(0, longest))
            time.sleep(after_s)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        began = time.monotonic()
        with kills.server() as server:
            ready = time.monotonic() - began
            first = kills.check(server)
            where = "new snapshot" if first == newest else "old snapshot" if first == before else "another snapshot"
            kills.reaches(server, newest)
        found[where] += 1
        print(
            f"kill {turn + 1:>2} after {after_s * 1000:>5.0f} ms: ready in {ready:.1f} s at the {where}; "
            "every answer its own; then at the newest",
            flush=True,
        )
        shutil.rmtree(delta)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 kills, 50,000 rows")
    options = parser.parse_args()
    print(machine_line())
    count, rows = (4, 50_000) if options.quick else (20, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        found = run(Kills(Path(folder), rows + rows // 5), count, rows)
    print(f"{count} kills, deltas of {rows:,} rows: {', '.join(f'{n} at the {where}' for where, n in found.items())}")
    if found["another snapshot"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
