"""A storm over everything between a stream and the server: the weights are those of a run that nothing disturbed.

    python -m tests.faults.stream                                  # Redis and Kafka, two ranks, a minute without broker
    python -m tests.faults.stream redis --ranks 1 --outage 5

Clicks come all the time, the training is started again whenever it ends, a server follows its deltas, and clients ask.
Then ranks are killed, the broker is gone, the whole command is killed, the disk of the run, the repository and the
server's store is full, and the server is killed. Afterwards the run has the bytes of one that followed the same stream
undisturbed, each row was trained on once, all answers of a snapshot to one request were the same, and the last ones are
the scores of the trained model. Ends with 1 otherwise. The full disk needs a user who is allowed to mount one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_line
from benchmarks.peers import PeerMissingError
from storage.errors import Unavailable
from tests.support.click_stream import NAME, Clients, check_last, click_rows, compare, train_first
from tests.support.server_process import ServerProcess, free_ports
from tests.support.small_disk import SmallDisk
from tests.support.stream_brokers import KafkaBroker, RedisBroker
from tests.support.trainer_process import TrainerProcess
from trainer.checkpoint import checkpoints, read_state

BROKERS: dict[str, Callable[[Path], Any]] = {"redis": RedisBroker, "kafka": KafkaBroker}
HISTORY_ROWS, A_MESSAGE, MESSAGES_A_SECOND = 20_000, 50, 20.0
DISK_MIB = 512
_WAIT_S = 300.0
# The model learns so much in seconds that the live guard takes it for an accident.
_NO_GUARD = 'parameters { key: "live_guard" value { string_value: "false" } }\n'


class Producer(threading.Thread):
    """Adds clicks at a steady rate until `end`, and tries again while the broker is gone."""

    def __init__(self, broker: Any) -> None:
        super().__init__()
        self.messages = 0
        self._broker = broker
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1 / MESSAGES_A_SECOND):
            self.messages += self._broker.add(self.messages, click_rows(self.messages % 1000 + 1, A_MESSAGE))

    def end(self) -> None:
        """Ends it with a message that is there as a whole."""
        self._over.set()
        if self.is_alive():
            self.join()


class Supervised(threading.Thread):
    """A training that is started again whenever it ends with an error, a second later, until it ends without one."""

    def __init__(self, place: Path, url: str, ranks: int, log: Path) -> None:
        super().__init__()
        self.errors = 0
        self._start_one = lambda: TrainerProcess(
            place, url, "--every-rows", "3000", "--until-idle", "8", "--nproc", str(ranks), log=log
        )
        self._over = threading.Event()
        self.trainer = self._start_one()

    def run(self) -> None:
        while not self._over.is_set():
            self.trainer.process.wait()
            if self.trainer.process.returncode == 0 or self._over.wait(1.0):
                return
            self.errors += self.trainer.process.returncode > 0
            self.trainer = self._start_one()

    def end(self) -> None:
        """Kills it for good."""
        self._over.set()
        self.trainer.kill()
        self.join()


class StreamStorm:
    """Runs the storm. said: gets a line about each of its parts. Raises AssertionError, PeerMissingError."""

    def __init__(self, folder: Path, kind: str, ranks: int, said: Callable[[str], None] = print) -> None:
        self._folder, self._ranks, self._say = folder, ranks, said
        self._stack = ExitStack()
        self.disk: SmallDisk | None = None
        place = folder / "disk"
        try:
            self.disk = SmallDisk(place, DISK_MIB)
            self._stack.callback(self.disk.close)
        except Unavailable as error:
            said(f"without a full disk: {error}")
            place.mkdir(exist_ok=True)
        self.place = place / "place"
        self.undisturbed = folder / "undisturbed"
        self.broker = BROKERS[kind](folder / "broker")
        self._stack.callback(self.broker.stop)
        self._ports = free_ports(3)

    def run(self, outage_s: float, full_s: float) -> None:
        """Runs all of it, for so long without broker and without space."""
        with self._stack:
            train_first(self.place, self._ranks, HISTORY_ROWS)
            with (self.place / "models" / NAME / "config.pbtxt").open("a") as file:
                file.write(_NO_GUARD)
            shutil.copytree(self.place, self.undisturbed)
            server = self._serve()
            producer = Producer(self.broker)
            assert self.broker.add(0, click_rows(0, A_MESSAGE))
            producer.messages = 1
            supervised = Supervised(self.place, self.broker.url, self._ranks, self._folder / "trainer.log")
            producer.start()
            supervised.start()
            try:
                with Clients(self._ports[0]) as clients:
                    server = self._disturb(supervised, server, outage_s, full_s)
                    producer.end()
                    supervised.join(_WAIT_S)
                    assert supervised.trainer.process.returncode == 0, self._log()
                    check_last(self.place, self._ports[0])
            finally:
                producer.end()
                supervised.end()
                server.close()
            assert not clients.wrong, "; ".join(clients.wrong[:5])
            options = ("--every-rows", "3000", "--until-idle", "2", "--nproc", str(self._ranks))
            last = TrainerProcess(self.undisturbed, self.broker.url, *options)
            said = last.end(timeout_s=_WAIT_S)
            assert last.process.returncode == 0, said
            rows, of_tables = compare(self.place, self.undisturbed)
            assert rows == producer.messages * A_MESSAGE, f"{rows} rows of {producer.messages * A_MESSAGE}"
            snapshots = len({snapshot for snapshot, _ in clients.scores})
            self._say(
                f"{rows:,} clicks, each trained on once; {of_tables:,} rows of tables with the bytes of the "
                f"undisturbed run; {clients.answers:,} answers of {snapshots} snapshots"
            )

    def _disturb(self, supervised: Supervised, server: ServerProcess, outage_s: float, full_s: float) -> ServerProcess:
        self._goes_on("the training has begun", 2000)
        for rank in range(self._ranks if self._ranks > 1 else 0):
            pid = supervised.trainer.rank(rank)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            self._goes_on(f"rank {rank} was killed")
        process = supervised.trainer.process
        self.broker.stop()
        time.sleep(outage_s)
        assert process.poll() is None, f"it ended without the broker: {self._log()}"
        self.broker.start()
        self._goes_on(f"the broker was gone for {outage_s:g} s")
        supervised.trainer.kill()
        self._goes_on("the command and all its ranks were killed")
        if self.disk is not None:
            errors, until = supervised.errors, time.monotonic() + full_s
            while time.monotonic() < until or supervised.errors == errors:
                assert time.monotonic() < until + _WAIT_S, f"it does not end on a full disk: {self._log()}"
                self.disk.fill()
                time.sleep(0.1)
            assert "No space left on device" in self._log(), self._log()
            lasted = f"{time.monotonic() - until + full_s:.0f} s"
            self.disk.empty()
            times = supervised.errors - errors
            self._goes_on(f"the disk was full for {lasted}, and the training ended with an error {times} times")
        server.kill()
        server = self._serve()
        self._goes_on("the server was killed")
        return server

    def _goes_on(self, what: str, rows: int = 1500) -> None:
        """Waits until commits have so many rows more."""
        began, first = time.monotonic(), self._rows()
        while self._rows() < first + rows:
            assert time.monotonic() < began + _WAIT_S, f"{what}, and it does not go on: {self._log()}"
            time.sleep(0.05)
        self._say(f"{what}; {rows:,} rows later after {time.monotonic() - began:.1f} s")

    def _rows(self) -> int:
        return read_state(checkpoints(self.place / "run")[-1]).position.rows

    def _log(self) -> str:
        return (self._folder / "trainer.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _serve(self) -> ServerProcess:
        ports = (self._ports[0], self._ports[1], self._ports[2])
        return ServerProcess(self.place / "models", self.place / "store", self._folder / "server.log", ports=ports)


def main() -> int:
    """Runs the storms that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("broker", nargs="*", choices=[*BROKERS, []], help="default: all")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--outage", type=float, default=60.0, help="seconds without the broker")
    parser.add_argument("--work", type=Path, help="keep everything in this folder (default: a temporary one)")
    parser.add_argument("--full", type=float, default=30.0, help="seconds for which the disk is full")
    options = parser.parse_args()
    print(machine_line(), flush=True)
    failed = 0
    for kind in options.broker or BROKERS:
        print(f"{kind}, {options.ranks} ranks", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder = (options.work or Path(scratch)) / kind
            folder.mkdir(parents=True)
            try:
                storm = StreamStorm(folder, kind, options.ranks, lambda text: print(f"    {text}", flush=True))
                storm.run(options.outage, options.full)
            except PeerMissingError as error:
                print(f"    not run: {error}")
            except AssertionError as error:
                failed += 1
                print(f"    FAILED: {error}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
