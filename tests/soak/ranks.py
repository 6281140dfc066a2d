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
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import machine_line
from tests.e2e.storm_clients import Asker
from tests.support.asking_threads import AskingThreads
from tests.support.server_process import ServerProcess, free_ports
from trainer import load_trained
from trainer.checkpoint import checkpoints, read_commit

NAME = "clicks"
CONFIG = """
model_name: clicks
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: INT64}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items}
  - {name: price, inputs: [price], transforms: [{op: log}], output: dense}
tables:
  - {name: users, dim: 8, admit_after: 2}
  - {name: items, dim: 8}
model: {type: dlrm, bottom: [8], top: [16]}
optimizer: {sparse: {lr: 0.1}, dense: {lr: 0.005}}
training: {batch_size: 256, epochs: 1, seed: 3, shuffle_rows: 4000, checkpoint_every_steps: 40}
"""
ROWS = 2000
DELTA_ROWS = 10_000
IDLE_S = 8.0
# Between kills of a rank; every fifth is one of the whole command, every seventh one of the server.
KILL_EVERY_S = 8.0
WHOLE, SERVER = 5, 7
_ASKED = 16
_TOLERANCE = 1e-5
_WAIT_S = 300.0


def click_rows(number: int, rows: int = ROWS) -> pa.Table:
    """Makes the rows of a file. Users and items that nobody has seen come with each file."""
    random_ = np.random.default_rng(number)
    user = random_.integers(0, 500 + 20 * number, rows)
    item = random_.integers(0, 300 + 5 * number, rows)
    likes = 1 / (1 + np.exp(-2.0 * np.cos(user * 12.9898 + item * 78.233)))
    return pa.table(
        {
            "user": user * 7919 - 50_000,
            "item": item * 104_729,
            "price": random_.exponential(10.0, rows).astype(np.float32),
            "clicked": (random_.random(rows) < likes).astype(np.int8),
        }
    )


class Follower:
    """`emberline update --follow` with several ranks, started again when the whole command was killed."""

    def __init__(self, place: Path, stream: Path, ranks: int) -> None:
        self._command = [sys.executable, "-m", "emberline", "update", str(place / "run"), "--follow", str(stream)]
        self._command += ["--repository", str(place / "models"), "--every-rows", str(DELTA_ROWS), "--quiet"]
        self._command += ["--nproc", str(ranks), "--max-restarts", "1000", "--until-idle", str(IDLE_S)]
        self._log = place / "follow.log"
        self._process = self._start()

    def rank(self, random_: random.Random) -> int | None:
        """Returns the process of one of the ranks; None while there is none."""
        found = [pid for pid in _children(self._process.pid) if _is_rank(pid)]
        return random_.choice(found) if found else None

    def kill(self) -> None:
        """Kills the command and all its ranks, and starts it again."""
        victims = [self._process.pid, *_children(self._process.pid)]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = self._start()

    def check(self) -> None:
        """Raises AssertionError if it ended with an error."""
        code = self._process.poll()
        assert code in (None, 0), self._text()

    def wait(self) -> None:
        """Waits until nothing has come for a while, and it has ended."""
        try:
            code = self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it does not end: {self._text()}") from None
        assert code == 0, self._text()

    @property
    def is_over(self) -> bool:
        """Returns whether it has ended."""
        return self._process.poll() is not None

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def _text(self) -> str:
        return self._log.read_text(encoding="utf-8")[-3000:]


class Clients(AskingThreads):
    """Threads that ask the same requests again and again. They stop at the end of `with`."""

    def __init__(self, port: int, count: int = 2) -> None:
        super().__init__()
        self.answers = 0
        #: By snapshot and request, the scores.
        self.scores: dict[tuple[str, int], list[float]] = {}
        self.wrong: list[str] = []
        self._port = port
        self._requests = [_request(number) for number in range(_ASKED)]
        self._threads = [threading.Thread(target=self._ask, args=(index,)) for index in range(count)]

    def _ask(self, index: int) -> None:
        newest = (0, 0)
        number = index
        while not self._stop.is_set():
            try:
                with Asker(self._port) as asker:
                    while not self._stop.is_set():
                        status, answer = asker.post(f"/v2/models/{NAME}/infer", self._requests[number % _ASKED])
                        newest = self._judge(number % _ASKED, status, answer, newest)
                        number += 1
                        time.sleep(0.01)
            except (OSError, ValueError, HTTPException):  # the server was killed
                time.sleep(0.2)

    def _judge(self, number: int, status: int, answer: dict[str, Any], newest: tuple[int, int]) -> tuple[int, int]:
        with self._lock:
            if status == 503:  # it starts
                return newest
            if status != 200:
                self.wrong.append(f"status {status}: {answer}")
                return newest
            self.answers += 1
            parameters = answer["parameters"]
            snapshot = (int(answer["model_version"]), int(parameters["sequence"]))
            scores = answer["outputs"][0]["data"]
            known = self.scores.setdefault((parameters["snapshot"], number), scores)
            if known != scores:
                self.wrong.append(f"snapshot {snapshot} answered {known}, and then {scores}")
            if snapshot < newest:
                self.wrong.append(f"snapshot {snapshot} answered after {newest}")
            return max(newest, snapshot)


def _request(number: int) -> dict[str, Any]:
    columns = click_rows(number, 8)
    shapes = {"user": "INT64", "item": "INT64", "price": "FP32"}
    return {
        "inputs": [
            {"name": name, "datatype": dtype, "shape": [8, 1], "data": columns[name].to_pylist()}
            for name, dtype in shapes.items()
        ]
    }


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
        self._train()
        shutil.copytree(self._place, self._whole)
        follower = Follower(self._place, self._stream, self._ranks)
        ports = free_ports(3)
        server = self._serve(ports)
        try:
            with Clients(ports[0]) as clients:
                server = self._disturb(follower, server, seconds, files_a_second, ports)
                follower.wait()
                self._check_last(ports[0])
        finally:
            server.close()
            if not follower.is_over:
                follower.kill()
        assert not clients.wrong, "; ".join(clients.wrong[:5])
        self.counts["answers"] = clients.answers
        self.counts["snapshots answered"] = len({snapshot for snapshot, _ in clients.scores})
        Follower(self._whole, self._stream, self._ranks).wait()
        self._compare()

    def _train(self) -> None:
        (self._folder / "clicks.yaml").write_text(CONFIG, encoding="utf-8")
        history = self._folder / "history.parquet"
        pq.write_table(click_rows(0, 20_000), history)
        command = [sys.executable, "-m", "emberline", "train", str(self._folder / "clicks.yaml"), "--quiet"]
        command += ["--data", str(history), "--output", str(self._place / "run"), "--nproc", str(self._ranks)]
        command += ["--repository", str(self._place / "models")]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

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
                pq.write_table(click_rows(self.counts["files"]), part)
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

    def _check_last(self, port: int) -> None:
        """Checks that what is served in the end are the scores of what was trained."""
        trained = load_trained(self._place / "run")
        wanted = [trained.predict(_columns(number)).reshape(-1) for number in range(_ASKED)]
        deadline = time.monotonic() + 30.0
        while True:
            with Asker(port) as asker:
                answers = [asker.post(f"/v2/models/{NAME}/infer", _request(number)) for number in range(_ASKED)]
            found = [np.array(answer["outputs"][0]["data"]) for status, answer in answers if status == 200]
            if len(found) == _ASKED:
                worst = max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True))
                if worst < _TOLERANCE:
                    return
            assert time.monotonic() < deadline, f"the last answers differ by {worst:g} from the trained model's"
            time.sleep(0.2)

    def _compare(self) -> None:
        one, other = (load_trained(place / "run") for place in (self._place, self._whole))
        positions = [
            list(read_commit(checkpoints(place / "run")[-1]).state.streams.values())
            for place in (self._place, self._whole)
        ]
        assert [each["rows"] for each in positions[0]] == [ROWS * self.counts["files"]], positions[0]
        assert positions[0] == positions[1]
        for name, table in one.tables.items():
            for mine, expected in zip(table.export_rows()[:4], other.tables[name].export_rows()[:4], strict=True):
                np.testing.assert_array_equal(mine, expected, err_msg=name)
        weights = other.model.state_dict()
        for name, value in one.model.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), weights[name].numpy(), err_msg=name)
        self.counts["rows"] = ROWS * self.counts["files"]
        self.counts["rows of tables"] = sum(len(table.export_rows()[0]) for table in one.tables.values())


def _columns(number: int) -> pa.Table:
    return click_rows(number, 8).drop_columns(["clicked"])


def _children(pid: int) -> list[int]:
    """Returns all processes that a process has started, and that these have."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_children(int(child))]
    return found


def _is_rank(pid: int) -> bool:
    with suppress(OSError):
        return any(each.startswith("RANK=") for each in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return False


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
