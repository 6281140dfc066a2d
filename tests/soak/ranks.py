"""Follows a growing folder with several ranks while a server serves their deltas, and kills all of them.

A rank dies every few seconds, now and then the whole command and the server too. Clients ask all the time. At the end
every row of the folder was trained on once: the model has the bytes of one that followed the same files undisturbed.
All answers of a snapshot to one request were the same, none was older than an answer before it, and the last ones are
the scores of the trained model.

    python -m tests.soak.ranks --seconds 600 --ranks 4
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.machine import machine_line
from tests.support.click_stream import Clients, check_last, click_rows, compare, train_first
from tests.support.server_process import ServerProcess, free_ports
from tests.support.trainer_process import TrainerProcess

ROWS = 2000
DELTA_ROWS = 10_000
IDLE_S = 8.0
# Between kills of a rank; every fifth is one of the whole command, every seventh one of the server.
KILL_EVERY_S = 8.0
WHOLE, SERVER = 5, 7
_WAIT_S = 300.0


class Follower:
    """`emberline update --follow` with several ranks, started again when the whole command was killed."""

    def __init__(self, place: Path, stream: Path, ranks: int) -> None:
        self._options = ["--every-rows", str(DELTA_ROWS), "--nproc", str(ranks), "--max-restarts", "1000"]
        self._options += ["--until-idle", str(IDLE_S)]
        self._place, self._stream, self._ranks = place, stream, ranks
        self._trainer = self._start()

    def rank(self, random_: random.Random) -> int | None:
        """Returns the process of one of the ranks; None while there is none."""
        return self._trainer.rank(random_.randrange(self._ranks))

    def kill(self) -> None:
        """Kills the command and all its ranks, and starts it again."""
        self._trainer.kill()
        self._trainer = self._start()

    def check(self) -> None:
        """Raises AssertionError if it ended with an error."""
        assert self._trainer.process.poll() in (None, 0), self._trainer.end()[-3000:]

    def end(self) -> None:
        """Kills it if it runs."""
        if self._trainer.process.poll() is None:
            self._trainer.kill()

    def wait(self) -> None:
        """Waits until nothing has come for a while, and it has ended."""
        try:
            said = self._trainer.end(timeout_s=_WAIT_S)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"it does not end: {self._trainer.end()[-3000:]}") from None
        assert self._trainer.process.returncode == 0, said[-3000:]

    def _start(self) -> TrainerProcess:
        return TrainerProcess(self._place, self._stream, *self._options, log=self._place / "follow.log")


class RanksSoak:
    """Runs the soak. counts: what was killed, and what came of it."""

    def __init__(self, folder: Path, ranks: int, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self._folder, self._ranks, self._random = folder, ranks, random.Random(seed)
        self._stream = folder / "stream"
        self._stream.mkdir(parents=True)
        self._place, self._whole = folder / "disturbed", folder / "undisturbed"

    def run(self, seconds: float, files_a_second: float = 1.0) -> None:
        """Runs for so long, and compares. Raises AssertionError for anything that is wrong."""
        train_first(self._place, self._ranks)
        shutil.copytree(self._place, self._whole)
        follower = Follower(self._place, self._stream, self._ranks)
        ports = free_ports(3)
        server = self._serve(ports)
        try:
            with Clients(ports[0]) as clients:
                server = self._disturb(follower, server, seconds, files_a_second, ports)
                follower.wait()
                check_last(self._place, ports[0])
        finally:
            server.close()
            follower.end()
        assert not clients.wrong, "; ".join(clients.wrong[:5])
        self.counts["answers"] = clients.answers
        self.counts["snapshots answered"] = len({snapshot for snapshot, _ in clients.scores})
        Follower(self._whole, self._stream, self._ranks).wait()
        self.counts["rows"], self.counts["rows of tables"] = compare(self._place, self._whole)
        assert self.counts["rows"] == ROWS * self.counts["files"]

    def _serve(self, ports: Sequence[int]) -> ServerProcess:
        log = self._folder / "server.log"
        return ServerProcess(self._place / "models", self._place / "store", log, ports=(ports[0], ports[1], ports[2]))

    def _disturb(
        self, follower: Follower, server: ServerProcess, seconds: float, files_a_second: float, ports: Sequence[int]
    ) -> ServerProcess:
        """Writes files and kills; returns the server that runs now."""
        began = time.monotonic()
        next_file, next_kill, kills = began, began + KILL_EVERY_S, 0
        while (now := time.monotonic()) < began + seconds:
            if now >= next_file:
                self.counts["files"] += 1
                part = self._stream / f".{self.counts['files']:06}.part"
                pq.write_table(click_rows(self.counts["files"], ROWS), part)
                part.rename(self._stream / f"{self.counts['files']:06}.parquet")
                next_file = max(next_file + 1 / files_a_second, now)
            if now >= next_kill:
                kills += 1
                next_kill = now + KILL_EVERY_S * self._random.uniform(0.5, 1.5)
                if kills % SERVER == 0:
                    server.kill()
                    server = self._serve(ports)
                    self.counts["servers killed"] += 1
                elif kills % WHOLE == 0:
                    follower.kill()
                    self.counts["commands killed"] += 1
                elif (rank := follower.rank(self._random)) is not None:
                    with suppress(ProcessLookupError):
                        os.kill(rank, signal.SIGKILL)
                        self.counts["ranks killed"] += 1
            follower.check()
            time.sleep(0.05)
        return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="keep everything in this folder (default: a temporary one)")
    options = parser.parse_args()
    print(machine_line(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        soak = RanksSoak(options.work or Path(scratch), options.ranks, options.seed)
        began = time.monotonic()
        try:
            soak.run(options.seconds)
        finally:
            did = ", ".join(f"{count:,} {what}" for what, count in soak.counts.items())
            print(f"{options.ranks} ranks: {did}; {time.monotonic() - began:.0f} s")
    print("the weights are those of an undisturbed run, and every answer was its snapshot's")


if __name__ == "__main__":
    main()
