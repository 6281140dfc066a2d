"""The open loop sends when requests are due, whatever the server does, and counts latency from then."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drivers import LocustDrivers
from loadtest.phases import Phase
from loadtest.prepared import encode
from loadtest.records import PhaseRecord
from loadtest.rows import Tensor
from loadtest.target import Target
from loadtest.wire import HttpConnection, Tls

pytestmark = pytest.mark.slow

STALL_S = 1.0
RATE, SECONDS = 100, 3


class StallingServer(http.server.ThreadingHTTPServer):
    """Answers every request at once, but the `stall_at`-th and all that come within STALL_S only after that time."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, stall_at: int, bad_every: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stall_at, self.bad_every, self.count = stall_at, bad_every, 0
        self.bodies: list[bytes] = []
        self.until = 0.0
        self.lock = threading.Lock()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StallingServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.count += 1
            number = self.server.count
            self.server.bodies.append(body)
            if number == self.server.stall_at:
                self.server.until = time.monotonic() + STALL_S
        while (left := self.server.until - time.monotonic()) > 0:
            time.sleep(left)
        is_bad = self.server.bad_every and number % self.server.bad_every == 0
        answer = b"no" if is_bad else b"{}"
        self.send_response(503 if is_bad else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *_: Any) -> None:
        pass


@contextmanager
def stalling(stall_at: int, bad_every: int = 0) -> Iterator[StallingServer]:
    server = StallingServer(stall_at, bad_every)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def measured(
    server: StallingServer, folder: Path, *phases: Phase, users: int = 64, processes: int = 1
) -> list[PhaseRecord]:
    requests = [[Tensor("x", "INT64", np.array([[number]]))] for number in range(10)]
    encode("http_json", "m", [requests]).save(folder / "requests")
    target = Target(f"http://127.0.0.1:{server.server_port}", "127.0.0.1:1", "m")
    with LocustDrivers("http_json", target, folder / "requests", users=users, processes=processes) as drivers:
        return [drivers.run(phase, seed=None, drain_s=30.0, watch=lambda _: False) for phase in phases]


@pytest.mark.parametrize("connections", [128, 4])
def test_a_stall_of_the_server_is_in_the_latency_of_all_requests_that_were_due_meanwhile(
    tmp_path: Path, connections: int
) -> None:
    """With 128 connections all requests are sent in time; with 4 they wait for one, and that is counted too."""
    with stalling(stall_at=RATE) as server:
        (record,) = measured(server, tmp_path, Phase(SECONDS, (RATE, RATE)), users=connections)
    counts = record.counts()
    assert counts.latency.total == RATE * SECONDS == server.count
    assert counts.failed == counts.unanswered == 0
    # Requests that were due in the first half of the stall waited for half of it or longer.
    assert counts.latency.over(STALL_S * 500) >= RATE * STALL_S / 2 - 2
    assert counts.latency.quantile(0.99) > STALL_S * 900
    assert counts.latency.largest < 30_000
    assert (counts.waited >= RATE * STALL_S / 2) is (connections == 4)


def test_a_closed_loop_sends_less_meanwhile(tmp_path: Path) -> None:
    """Only the users' own requests wait: this is what the open loop is for."""
    with stalling(stall_at=20) as server:
        (record,) = measured(server, tmp_path, Phase(SECONDS, users=2), users=2)
    counts = record.counts()
    assert 1 <= counts.latency.over(STALL_S * 500) <= 2
    assert counts.latency.total == server.count


def test_phases_follow_each_other_over_several_processes(tmp_path: Path) -> None:
    with stalling(stall_at=0) as server:
        first, second, third = measured(
            server, tmp_path, Phase(1, (60, 60)), Phase(2, (20, 80)), Phase(1, users=3), processes=2
        )
        bodies = set(server.bodies)
    assert first.counts().latency.total == 60
    assert second.counts().latency.total == 100
    assert third.counts().latency.total > 0
    assert first.counts().answered == 60
    assert set(first.cpu) == {0, 1}
    assert len(bodies) == 10, "every prepared request is sent"


def test_refusals_are_failures_with_their_texts(tmp_path: Path) -> None:
    with stalling(stall_at=0, bad_every=5) as server:
        (record,) = measured(server, tmp_path, Phase(1, (50, 50)))
    counts = record.counts()
    assert (counts.failed, counts.latency.total) == (10, 40)
    assert counts.errors == {"503: no": 10}


def test_a_phase_can_be_ended_early(tmp_path: Path) -> None:
    requests = [[Tensor("x", "INT64", np.array([[1]]))]]
    encode("http_json", "m", [requests]).save(tmp_path / "requests")
    with stalling(stall_at=0) as server:
        target = Target(f"http://127.0.0.1:{server.server_port}", "127.0.0.1:1", "m")
        with LocustDrivers("http_json", target, tmp_path / "requests", users=8, processes=1) as drivers:
            early = drivers.run(
                Phase(600, (50, 50)), seed=None, drain_s=5, watch=lambda record: record.counts().answered >= 20
            )
            after = drivers.run(Phase(1, (30, 30)), seed=1, drain_s=5, watch=lambda _: False)
    assert 20 <= early.counts().latency.total < 30_000
    assert early.lasted < 600
    assert 5 < after.counts().latency.total < 90, "users that waited for the first phase send the second"


def test_a_server_that_speaks_no_http_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_say_nonsense, args=(server,))
        thread.start()
        connection = HttpConnection(f"http://127.0.0.1:{server.getsockname()[1]}", Tls(), 10.0)
        with pytest.raises(OSError, match=r"the response is no HTTP/1\.1"):
            connection.ask(b"GET / HTTP/1.1\r\n\r\n")
        thread.join()


def _say_nonsense(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"SSH-2.0-OpenSSH\r\ncontent-length: 0\r\n\r\n")
