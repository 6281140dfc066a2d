"""Ten thousand connections at once to the HTTP port, slow clients of every kind, and each limit of the server.

    python -m tests.soak.connections                      # two minutes
    python -m tests.soak.connections --connections 2000   # where few files may be open

Clients have several addresses of this machine. Meanwhile one of them sends ordinary requests, on a connection that
stays and on new ones: none may fail, and their times are printed. Exit code 0 when all checks hold.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from serving import Server, ServerConfig
from tests.external import h2_frames as h2
from tests.external.http_smuggling import Answer, Line
from tests.integration.serving.conftest import Published
from tests.integration.serving.native_clients import PATH, body_of, request_bytes, tensors

BODY_TIMEOUT_S, KEEP_ALIVE_S = 20.0, 75.0
INFLIGHT = 64 << 20
ADDRESSES = 8
#: Most memory that one connection may cost the server while nothing is sent on it, in bytes.
IDLE_BYTES, IDLE_GRPC_BYTES = 4096, 32768
_SLOW, _MIB = 300, 1 << 20
# What the server's memory may grow by for other reasons.
_SLACK_BYTES = 8 << 20
# Clients that read nothing: each has to be sent megabytes before the system takes no more.
_MUTE = 5
# So many requests at a time are within the queue of a model.
_WAVE = 100


def serve(folder: Path, limits: dict[str, Any], ends: Connection) -> None:
    """Runs a server in a process of its own until the other end says something."""
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=folder / "models", store=folder / "store", **ports, **limits)
    server = Server(config).start()
    assert server.native is not None
    ends.send((server.http_port, server.grpc_port))
    ends.recv()
    server.stop()


@contextlib.contextmanager
def running(folder: Path, **limits: Any) -> Iterator[Site]:
    """Runs a server for the length of the `with` block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(folder, limits, theirs))
    process.start()
    try:
        http_port, grpc_port = ours.recv()
        yield Site(http_port, grpc_port, psutil.Process(process.pid))
    finally:
        ours.send("end")
        process.join(60)
        assert process.exitcode == 0, f"the server ended with {process.exitcode}"


class Site:
    """A server with its plain requests, and what they are answered."""

    def __init__(self, http_port: int, grpc_port: int, process: psutil.Process) -> None:
        self.port, self.grpc_port = http_port, grpc_port
        self._process = process
        values = tensors(Published(3), 1)
        self.plain = request_bytes(*body_of(values))
        with Line(self.port) as line:
            line.send([request_bytes(*body_of(values), headers="Authorization: Bearer none\r\n")])
            self.answer = line.read()

    def connect(self, number: int, port: int = 0, *, receives: int = 0) -> socket.socket:
        """Returns a connection.

        number: chooses the address that it comes from. receives: bytes that may wait to be read; 0 for the usual.
        """
        end = socket.socket()
        if receives:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
        end.settimeout(60)
        end.connect(("127.0.0.1", port or self.port))
        return end

    def memory(self) -> int:
        """Returns the bytes of memory that the server's process has to itself."""
        return int(self._process.memory_full_info().uss)

    def check(self, answer: Answer) -> None:
        """Checks an answer to the plain request."""
        assert answer == self.answer, answer

    def check_bytes(self, got: bytes) -> None:
        """Checks the bytes of an answer to the plain request."""
        assert got.startswith(b"HTTP/1.1 200 OK\r\n"), got
        assert got.endswith(self.answer.content), got


class Ordinary:
    """Sends plain requests in the background while a crowd is there."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times_ms: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Ordinary:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def line(self) -> str:
        """Says how they were answered. Raises AssertionError if one was not."""
        assert not self.failures, self.failures[:3]
        times = sorted(self.times_ms)
        middle, late = times[len(times) // 2], times[len(times) * 99 // 100]
        return f"{len(times)} ordinary requests beside them, p50 {middle:.1f} ms, p99 {late:.1f} ms"

    def _run(self) -> None:
        with Line(self._site.port) as kept:
            while not self._stopping.wait(0.01):
                try:
                    self._ask(kept)
                    with Line(self._site.port) as line:
                        self._ask(line)
                except Exception as error:
                    self.failures.append(repr(error))
                    return

    def _ask(self, line: Line) -> None:
        begun = time.monotonic()
        line.send([self._site.plain])
        self._site.check(line.read())
        self.times_ms.append((time.monotonic() - begun) * 1000)


def read_all(end: socket.socket) -> bytes:
    """Returns everything until the server has ended the connection."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while piece := end.recv(65_536):
            got += piece
    return got


def read_one(end: socket.socket) -> bytes:
    """Returns one answer."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = end.recv(65_536)
        assert piece, "the connection has ended"
        got += piece
    head, _, rest = got.partition(b"\r\n\r\n")
    (length,) = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    while len(rest) < length:
        rest += end.recv(65_536)
    return head + b"\r\n\r\n" + rest


def idle(site: Site, count: int) -> str:
    """Checks connections on which nothing was sent, and then an answer has been."""
    before = site.memory()
    with contextlib.ExitStack() as ends, Ordinary(site) as beside:
        crowd = [ends.enter_context(site.connect(number)) for number in range(count)]
        fresh = (site.memory() - before) / count
        for _ in range(2):  # the second time shows that they have stayed open
            for start in range(0, count, _WAVE):
                for end in crowd[start : start + _WAVE]:
                    end.sendall(site.plain)
                for end in crowd[start : start + _WAVE]:
                    site.check_bytes(read_one(end))
        used = (site.memory() - before) / count
    assert max(fresh, used) < IDLE_BYTES + _SLACK_BYTES / count, (fresh, used)
    return f"{count} idle, {fresh:.0f} bytes each before and {used:.0f} after a request; {beside.line()}"


def idle_grpc(site: Site, count: int) -> str:
    """Checks connections of gRPC on which no call was made."""
    before = site.memory()
    with contextlib.ExitStack() as ends, Ordinary(site) as beside:
        for number in range(count):
            end = ends.enter_context(site.connect(number, site.grpc_port))
            end.sendall(h2.PREFACE + h2.settings())
            assert end.recv(9)
        used = (site.memory() - before) / count
    assert used < IDLE_GRPC_BYTES + _SLACK_BYTES / count, used
    return f"{count} idle of gRPC, {used:.0f} bytes each; {beside.line()}"


def handed_over(site: Site, count: int) -> str:
    """Checks connections that the Python path has, and that they go back."""
    before = site.memory()
    look = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    with contextlib.ExitStack() as ends, Ordinary(site) as beside:
        crowd = [ends.enter_context(site.connect(number)) for number in range(count)]
        for end in crowd:
            end.sendall(look)
            assert b" 200 OK" in read_one(end)
        used = (site.memory() - before) / count
        for end in crowd:
            end.sendall(site.plain)
            site.check_bytes(read_one(end))
        back = (site.memory() - before) / count
    return f"{count} handed over, {used:.0f} bytes each, {back:.0f} when they are back; {beside.line()}"


def halves(site: Site, count: int) -> str:
    """Checks requests that stop half-way: they are refused when their time is over."""
    before = site.memory()
    with contextlib.ExitStack() as ends, Ordinary(site) as beside:
        crowd = [ends.enter_context(site.connect(number)) for number in range(count)]
        for number, end in enumerate(crowd):
            end.sendall(site.plain[: 1 + number % (len(site.plain) - 1)])
        used = (site.memory() - before) / count
        for end in crowd:
            got = read_all(end)
            assert got.startswith(b"HTTP/1.1 400 "), got
            assert b"did not arrive within 20 s" in got, got
    return f"{count} half requests, {used:.0f} bytes each, all refused in the end; {beside.line()}"


def slow_writers(site: Site, count: int) -> str:
    """Checks clients that send a byte at a time: those in time are answered."""
    with contextlib.ExitStack() as ends, Ordinary(site) as beside:
        crowd = [ends.enter_context(site.connect(number)) for number in range(count)]
        for place in range(len(site.plain)):
            for end in crowd:
                end.sendall(site.plain[place : place + 1])
        for end in crowd:
            site.check_bytes(read_one(end))
    return f"{count} slow writers, all answered; {beside.line()}"


def slow_readers(site: Site, count: int) -> str:
    """Checks clients that read their answers a byte at a time."""
    with contextlib.ExitStack() as ends, Ordinary(site) as beside:
        crowd = []
        for number in range(count):
            end = ends.enter_context(site.connect(number, receives=4096))
            end.sendall(site.plain * 3)
            crowd.append(end)
        got = [bytearray() for _ in crowd]
        while any(part.count(site.answer.content) < 3 for part in got):
            for end, part in zip(crowd, got, strict=True):
                if part.count(site.answer.content) < 3:
                    part += end.recv(1)
    return f"{count} slow readers, all answered; {beside.line()}"


def no_readers(site: Site, count: int) -> str:
    """Checks clients that send requests and read nothing: what they take is bounded, and they are ended."""
    before = site.memory()
    with contextlib.ExitStack() as ends, Ordinary(site) as beside:
        crowd = []
        for number in range(count):
            end = ends.enter_context(site.connect(number, receives=4096))
            end.setblocking(False)
            crowd.append(end)
        begun, ended, most = time.monotonic(), 0, 0
        waiting = {end.fileno(): end for end in crowd}
        poll = select.poll()
        for end in crowd:
            poll.register(end, select.POLLOUT | select.POLLERR | select.POLLHUP)
        while waiting and time.monotonic() - begun < 6 * BODY_TIMEOUT_S:
            for descriptor, _ in poll.poll(1000):
                try:
                    waiting[descriptor].send(site.plain * 20)
                except BlockingIOError:
                    pass
                except ConnectionError:
                    poll.unregister(descriptor)
                    del waiting[descriptor]
                    ended += 1
            most = max(most, site.memory() - before)
    assert not waiting, f"{len(waiting)} of {count} were not ended"
    return f"{ended} that read nothing, {most / count / 1024:.0f} KiB each at most, all ended; {beside.line()}"


def bytes_in_flight(site: Site, count: int) -> str:
    """Checks that bodies together stay within the bound, and are not counted when their connections have ended."""
    body = bytes(_MIB)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {2 * _MIB}\r\nInference-Header-Content-Length: 9\r\n\r\n"
    )
    for _ in range(3):
        with contextlib.ExitStack() as ends:
            crowd = [ends.enter_context(site.connect(number)) for number in range(100)]
            refused = 0
            for end in crowd:
                with contextlib.suppress(ConnectionError):
                    end.sendall(head.encode() + body)
            for end in crowd:
                end.settimeout(0.02)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    refused += b" 503 " in end.recv(4096)[:16]
            assert 36 <= refused < 100, refused
    with Line(site.port) as line:
        line.send([site.plain])
        site.check(line.read())
    return f"100 bodies of 1 MiB each beside a bound of 64 MiB: {refused} refused, none counted for ever"


def bounded(folder: Path) -> str:
    """Checks the bounds on connections, on a server that allows few."""
    with running(folder, max_connections=200, max_connections_per_address=50, body_timeout_s=5) as site:
        begun = site.plain[:-5]  # a head and most of a body: such a connection is not idle
        with contextlib.ExitStack() as ends:
            first = [ends.enter_context(site.connect(0)) for _ in range(50)]
            more = ends.enter_context(site.connect(0))
            more.sendall(site.plain)
            site.check_bytes(read_one(more))
            assert first[0].recv(1) == b"", "the one that was idle for longest is open"
        with contextlib.ExitStack() as ends:
            for _ in range(50):
                ends.enter_context(site.connect(1)).sendall(begun)
            time.sleep(0.5)
            refused = read_all(ends.enter_context(site.connect(1)))
            assert refused.startswith(b"HTTP/1.1 503 "), refused
            assert b"this address has 50 connections" in refused, refused
            other = ends.enter_context(site.connect(2))
            other.sendall(site.plain)
            site.check_bytes(read_one(other))
        with contextlib.ExitStack() as ends:
            for number in range(200):
                ends.enter_context(site.connect(number)).sendall(begun)
            time.sleep(0.5)
            refused = read_all(ends.enter_context(site.connect(7)))
            assert refused.startswith(b"HTTP/1.1 503 "), refused
            assert b"too many connections are open" in refused, refused
        answer = None
        while answer != site.answer:  # the server may not have seen yet that the others are gone
            with Line(site.port) as line:
                line.send([site.plain])
                answer = line.read()
            assert answer.status in (200, 503), answer
    return "200 connections, 50 of an address: the oldest idle ones give way, and none else"


def kept_alive(site: Site) -> str:
    """Checks that a connection is ended when it has been idle for its time, and not before."""
    with site.connect(0) as end:
        begun = time.monotonic()
        end.settimeout(2 * KEEP_ALIVE_S)
        assert end.recv(1) == b""
        took = time.monotonic() - begun
    assert took > KEEP_ALIVE_S - 1, took
    return f"an idle connection was ended after {took:.0f} s"


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.connections",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--only", default="", help="the check of this name, such as halves")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = options.connections
    if hard < count + 1000:
        print(f"skipped: at most {hard} files may be open; name fewer with --connections", file=sys.stderr)
        return 2
    failed = 0
    limits = {"max_connections": count + 500, "max_connections_per_address": count, "body_timeout_s": BODY_TIMEOUT_S}
    checks: tuple[tuple[Callable[[Site, int], str], int], ...] = (
        (idle, count),
        (handed_over, min(count, (hard - 1000) // 2)),
        (idle_grpc, count),
        (halves, count),
        (slow_writers, _SLOW),
        (slow_readers, _WAVE),
        (no_readers, _MUTE),
        (bytes_in_flight, 100),
    )

    def run(name: str, check: Callable[[], str]) -> None:
        nonlocal failed
        try:
            print(f"passed: {check()}", flush=True)
        except (AssertionError, OSError) as error:
            failed += 1
            print(f"FAILED: {name}: {type(error).__name__} {str(error)[:500]}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Published(3).publish(folder / "models" / "ranker")
        with (
            running(folder, max_inflight_bytes=INFLIGHT, **limits) as site,
            ThreadPoolExecutor(1) as aside,
        ):
            ended = aside.submit(kept_alive, site) if not options.only else None
            for check, size in checks:
                if options.only not in ("", check.__name__):
                    continue
                run(check.__name__, lambda check=check, size=size: check(site, size))  # type: ignore[misc]
            if ended is not None:
                run("kept_alive", ended.result)
        if not options.only:
            run("bounded", lambda: bounded(folder))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
