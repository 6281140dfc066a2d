"""The generator's side of the connection to the command: it receives phases, and reports counts once a second.

Both ways carry lines of JSON. The command sends {"number", "begin", "seconds", "rate" or "users", "seed", "drain_s"}
for a phase and {"end": number} to end one early; when it closes the connection, the generator ends. The generator sends
{"ready": users}, {"phase", "seconds": {second: counts}, "cpu_s", "wall_s"} and {"done": number}.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import gevent
import gevent.lock

from loadtest.pacing import Pace, RunningPhase

REPORT_S = 1.0
# How often is looked whether the last answers of a phase have come.
_LOOK_S = 0.02


class Control:
    """Serves the connection. ended: called when the command has closed it."""

    def __init__(self, connection: socket.socket, pace: Pace, ended: Callable[[], None]) -> None:
        self._connection, self._pace, self._ended = connection, pace, ended
        self._sending = gevent.lock.BoundedSemaphore()
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def start(self, users: int) -> None:
        """Begins to serve in greenlets of its own. users: that are ready to send."""
        self._send({"ready": users})
        gevent.spawn(self._receive)

    def _receive(self) -> None:
        try:
            with self._connection.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    content = json.loads(line)
                    phase = self._pace.phase
                    if "end" not in content:
                        gevent.spawn(self._run, self._pace.begin(content), float(content["drain_s"]))
                    elif phase is not None and phase.number == content["end"]:
                        phase.end = min(phase.end, time.monotonic())
        except OSError:
            pass
        self._ended()

    def _run(self, phase: RunningPhase, drain_s: float) -> None:
        """Reports the counts of a phase until it is over."""
        while time.monotonic() < phase.end:
            gevent.sleep(min(REPORT_S, max(0.0, phase.end - time.monotonic()), _LOOK_S * 5))
            if time.monotonic() - self._wall >= REPORT_S:
                self._report(phase)
        while not phase.is_idle() and time.monotonic() < phase.end + drain_s:
            gevent.sleep(_LOOK_S)
        self._pace.finish(phase)
        self._report(phase)
        self._send({"done": phase.number})

    def _report(self, phase: RunningPhase) -> None:
        counts = phase.take_counts()
        cpu, wall = time.process_time(), time.monotonic()
        self._send(
            {
                "phase": phase.number,
                "seconds": {second: each.to_json_value() for second, each in counts.items()},
                "cpu_s": cpu - self._cpu,
                "wall_s": wall - self._wall,
            }
        )
        self._cpu, self._wall = cpu, wall

    def _send(self, content: dict[str, Any]) -> None:
        with self._sending:
            try:
                self._connection.sendall(json.dumps(content).encode() + b"\n")
            except OSError:
                self._ended()
