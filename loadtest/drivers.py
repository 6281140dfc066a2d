"""Starts the generator's processes, has them send phases, and gathers what they count."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.command import controlled_command
from loadtest.phases import Phase
from loadtest.records import PhaseRecord
from loadtest.target import Target
from storage.errors import DeadlineExceeded, Unavailable

START_TIMEOUT_S = 90.0
# A process that has not reported for so long, while it should once a second, hangs.
_SILENCE_S = 90.0
# All processes begin a phase together, after its message has reached them.
_LEAD_S = 0.05
# How long a process may take to end.
_ENDING_S = 3.0
#: Seconds that the last answers of an interrupted phase may take.
INTERRUPTED_DRAIN_S = 2.0

# Called about once a second with what was measured so far; True ends the phase early.
Watch = Callable[[PhaseRecord], bool]


class LocustDrivers:
    """Several locust processes that send one kind of request. Use it in `with`."""

    def __init__(self, kind: str, target: Target, prepared: Path, *, users: int, processes: int) -> None:
        """users: connections of all processes together."""
        self._kind, self._target, self._prepared = kind, target, prepared
        self._users, self._processes = users, processes
        self._running: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._numbers = 0

    def __enter__(self) -> LocustDrivers:
        """Starts the processes. Raises Unavailable when one does not start."""
        try:
            for index in range(self._processes):
                self._running.append(self._start(index))
                self._selector.register(self._running[-1].connection, selectors.EVENT_READ, self._running[-1])
            ready: set[int] = set()
            until = time.monotonic() + START_TIMEOUT_S
            while len(ready) < self._processes:
                if time.monotonic() > until:
                    raise DeadlineExceeded(f"the load generator has not started within {START_TIMEOUT_S:g} s")
                ready |= {process.index for process, content in self._receive(1.0) if "ready" in content}
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return [process.pid for process in self._running]

    def note(self) -> str:
        """Returns nothing: each record says what shows of the processes."""
        return ""

    def close(self) -> None:
        """Ends the processes: by closing their connections, and those that go on by a signal."""
        self._selector.close()
        for process in self._running:
            process.close()
        self._running = []

    def run(self, phase: Phase, *, seed: int | None, drain_s: float, watch: Watch) -> PhaseRecord:
        """Sends a phase and returns what was measured. seed: of the gaps between requests; None for equal ones.

        drain_s: how long the last answers may take. Ctrl-C ends the phase, a process that ends or hangs does, and the
        record says so.
        """
        self._numbers += 1
        record = PhaseRecord(phase, self._numbers, time.monotonic() + _LEAD_S)
        try:
            self._run(record, phase, seed, drain_s, watch)
        except (Unavailable, DeadlineExceeded) as error:
            record.broken = str(error)
            record.lasted = max(0.0, min(phase.seconds, time.monotonic() - record.began))
        return record

    def _run(self, record: PhaseRecord, phase: Phase, seed: int | None, drain_s: float, watch: Watch) -> None:
        load = {"users": phase.users} if phase.rate is None else {"rate": phase.rate}
        content = {"number": record.number, "begin": record.began, "seconds": phase.seconds, "seed": seed, **load}
        self._send({**content, "drain_s": drain_s})
        record.lasted = phase.seconds
        done: set[int] = set()
        try:
            self._gather(record, done, record.began + phase.seconds + drain_s, watch)
        except KeyboardInterrupt:
            record.interrupted = True
            self._end(record)
            self._gather(record, done, time.monotonic() + INTERRUPTED_DRAIN_S, lambda _: False, until_s=1.0)

    def _gather(
        self, record: PhaseRecord, done: set[int], last: float, watch: Watch, *, until_s: float = _SILENCE_S
    ) -> None:
        """Merges reports until all processes are done. last: when the phase should be over."""
        shown, ended = time.monotonic(), record.interrupted
        while len(done) < len(self._running):
            for process, content in self._receive(0.2):
                if content.get("phase") == record.number:
                    record.merge(process.index, content)
                elif content.get("done") == record.number:
                    done.add(process.index)
            now = time.monotonic()
            if now > last + until_s:
                if record.interrupted:
                    return
                raise DeadlineExceeded("a process of the load generator does not report any more")
            if now - shown >= 0.5:
                shown = now
                if watch(record) and not ended:
                    ended = True
                    self._end(record)

    def _end(self, record: PhaseRecord) -> None:
        record.lasted = max(0.0, min(record.lasted, time.monotonic() - record.began))
        self._send({"end": record.number})

    def _send(self, content: dict[str, Any]) -> None:
        line = json.dumps(content).encode() + b"\n"
        for process in self._running:
            try:
                process.connection.sendall(line)
            except OSError:  # it has ended, and what it left to read says why
                while True:
                    process.receive()

    def _receive(self, timeout_s: float) -> list[tuple[_Process, dict[str, Any]]]:
        found: list[tuple[_Process, dict[str, Any]]] = []
        for key, _ in self._selector.select(timeout_s):
            process: _Process = key.data
            found += [(process, content) for content in process.receive()]
        return found

    def _start(self, index: int) -> _Process:
        ours, theirs = socket.socketpair()
        count = len(range(index, self._users, self._processes))
        command = controlled_command(
            self._kind,
            url=self._target.url,
            grpc=self._target.grpc,
            model=self._target.model,
            prepared=self._prepared,
            users=max(1, count),
            control=theirs.fileno(),
            index=index,
            processes=self._processes,
            tls=self._target.tls_options(),
        )
        environment = {**os.environ, "EMBERLINE_TOKEN": self._target.token}
        log = self._prepared.parent / f"{self._kind}-{index}.log"
        with theirs, log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the command, which ends the load in order
            )
        return _Process(index, process, ours, log)


class _Process:
    """A process of the generator."""

    def __init__(self, index: int, process: subprocess.Popen[bytes], connection: socket.socket, log: Path) -> None:
        self.index, self.connection = index, connection
        self._process, self._log, self._partial = process, log, b""
        self.pid = process.pid

    def receive(self) -> list[dict[str, Any]]:
        """Returns the messages that have come. Raises Unavailable when the process has ended."""
        try:
            part = self.connection.recv(1 << 20)
        except ConnectionResetError:  # it ended with messages that it had not read
            part = b""
        if not part:
            code = self._process.wait(timeout=10)
            text = self._log.read_text(errors="replace").strip()[-2000:]
            raise Unavailable(f"the load generator ended with {code}: {text}")
        *lines, self._partial = (self._partial + part).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Ends the process."""
        self.connection.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if number:
                    self._process.send_signal(number)
                self._process.wait(timeout=_ENDING_S)
                return
