"""Runs a served model on a GPU under all load at once: batches of all sizes, changing sessions, deltas, rollbacks.

Every answer must be exactly that of the snapshot which it names. Memory on the GPU, and pinned on the host, is looked
at whenever there are as many sessions as at the start: it must then be what it was. Without --GPU the GPU is
simulated, and every access is checked for order as well.

    python -m tests.soak.gpu --seconds 600
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from serving.gpu.driver import Gpus
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, ask, check_answer
from tests.simulated_gpu import SimulatedGpus
from tests.soak.watch import Watch

CALLERS = 4
SESSIONS = 2
ROWS = 400
_CONFIG = f"max_batch_size: 256 instance_group {{ kind: KIND_GPU count: {SESSIONS} }} dynamic_batching {{ }}"


class GpuSoak:
    """One run over a model on a GPU.

    counts: how often each operation was done.
    memory: (device, pinned) bytes at each sample.
    """

    def __init__(self, folder: Path, gpus: Gpus, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self.memory: list[tuple[int, int]] = []
        self.watch = Watch(folder)
        self._gpus = gpus
        self._driver = gpus.driver(0)
        self._live = Live(folder, gpus=gpus)
        self._rng = np.random.default_rng(seed)
        self._stop = threading.Event()
        self._wrong: list[BaseException] = []

    def run(self, seconds: float) -> None:
        """Runs the soak. Raises AssertionError for a wrong answer, and for memory that is not given back."""
        live = self._live
        live.world.configure(_CONFIG, retain_snapshots=3)
        with live:
            live.version()
            live.start()
            callers = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]
            for caller in callers:
                caller.start()
            try:
                self._operate(time.monotonic() + seconds)
            finally:
                self._stop.set()
                for caller in callers:
                    caller.join()
            assert not self._wrong, self._wrong[0]
            (version,) = live.repository.sessions(NAME)["versions"]
            gpu = version["gpus"]["0"]
            assert (gpu["given_up"], gpu["on_processor"]) == ("", 0)
            self.counts["weight uploads"] = gpu["weight_uploads"]
        assert len(set(self.memory)) == 1, f"memory on the GPU varies: {self.memory}"
        self._driver.enter_thread()
        left = self._driver.memory()
        assert (left.device, left.pinned) in ((0, 0), (16, 0)), f"left behind: {left}"  # a driver may have a word there

    def _operate(self, until: float) -> None:
        live = self._live
        repository = live.repository
        newest = live.snapshots[next(iter(live.snapshots))]
        for turn in range(10**9):
            newest = live.delta(newest)
            live.reaches(newest)
            self.counts["deltas"] += 1
            if turn >= 3:  # until then replays captured the graphs that they need
                self._look()
            if turn % 5 == 4:
                repository.rollback(NAME, steps=int(self._rng.integers(1, 3)))
                self.counts["rollbacks"] += 1
                repository.resume(NAME)
                live.reaches(newest)
            if turn % 3 == 2:
                repository.set_sessions(NAME, int(self._rng.integers(1, 6)))
                time.sleep(0.05)
                repository.set_sessions(NAME, None)
                self.counts["resized"] += 1
            if time.monotonic() > until and turn >= 6:
                return

    def _look(self) -> None:
        """Samples the memory once the sessions that were removed have ended."""
        live, driver = self._live, self._driver

        def settled() -> bool:
            (version,) = live.repository.sessions(NAME)["versions"]
            return len(version["sessions"]) == version["count"] == SESSIONS

        live.until(settled)
        driver.enter_thread()
        until = time.monotonic() + 10
        while True:
            now = driver.memory()
            taken = (now.device, now.pinned)
            # A session gives its memory back a moment after it ends.
            if not self.memory or taken == self.memory[0] or time.monotonic() > until:
                break
            time.sleep(0.02)
        self.memory.append(taken)
        self.watch.sample()

    def _call(self, number: int) -> None:
        rng = np.random.default_rng(number)
        live = self._live
        rows = live.world.rows_of(next(iter(live.snapshots.values())), ROWS)
        while not self._stop.is_set():
            count = int(rng.choice((1, 2, 7, 40, 130, 256)))
            first = int(rng.integers(0, ROWS - count))
            part = rows[first : first + count]
            try:
                check_answer(ask(live.repository, part), part, live.snapshots)
            except BaseException as error:
                self._wrong.append(error)
                return
            self.counts["answers"] += 1
            self.counts["rows"] += count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="on the real GPU 0")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    gpus: Gpus = SimulatedGpus(schedule="random", seed=options.seed)
    if options.gpu:
        from serving.gpu.gpus import find_gpus

        gpus = find_gpus()
        if gpus.why_none:
            parser.error(f"--GPU: {gpus.why_none}")
    with tempfile.TemporaryDirectory() as folder:
        soak = GpuSoak(Path(folder), gpus, options.seed)
        soak.run(options.seconds)
    if isinstance(gpus, SimulatedGpus):
        driver = gpus.driver(0)
        driver.enter_thread()
        driver.finish()
        assert not driver.errors, driver.errors[0]
    did = ", ".join(f"{count:,} {name}" for name, count in sorted(soak.counts.items()))
    print(f"{options.seconds:g} s on {gpus.infos[0]}: {did}; every answer its snapshot's own")
    device, pinned = soak.memory[0]
    print(f"GPU {device:,} bytes, pinned {pinned:,}: the same in all {len(soak.memory)} looks; {soak.watch.line()}")


if __name__ == "__main__":
    main()
