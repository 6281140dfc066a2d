"""Checks that many, slow and idle connections do no harm to a running server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from serving import Server
from serving.grpc import server as grpc_module
from serving.http import limits as limits_module
from tests.integration.serving.certificates import make_ca, make_certificate
from tests.integration.serving.guarded import call, status
from tests.integration.serving.http_calls import until

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def small(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """Starts a server that allows few connections and has short timeouts."""
    monkeypatch.setattr(limits_module, "_TICK_S", 0.02)
    monkeypatch.setattr(grpc_module, "_HANDSHAKE_MS", 2000)
    with start_server(version_dir.parent.parent, tmp_path / "store", max_connections=8, body_timeout_s=0.5) as server:
        yield server


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def is_ended(end: socket.socket) -> bool:
    """Waits until the other end has closed or reset the connection; whatever comes before is read."""
    try:
        while end.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def test_idle_connections_stop_nobody(small: Server) -> None:
    ends = [connect(small.http_port) for _ in range(200)]
    try:
        for _ in range(20):
            assert status(small.http_port, "GET", "/v2/health/live") == 200
        assert is_ended(ends[0])
    finally:
        for end in ends:
            end.close()


def test_the_metrics_port_has_a_bound_of_its_own(small: Server) -> None:
    ends = [connect(small.metrics_port) for _ in range(50)]
    try:
        assert status(small.metrics_port, "GET", "/metrics") == 200
        assert status(small.http_port, "GET", "/v2/health/live") == 200
    finally:
        for end in ends:
            end.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        b"GET /v2 HT",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST /v2/models/ranker/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{",
        b"POST /v2/models/ranker/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
def test_a_request_that_does_not_go_on_is_ended(small: Server, first: bytes) -> None:
    with connect(small.http_port) as end:
        end.sendall(first)
        assert is_ended(end)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_ended(small: Server) -> None:
    """Requests the metrics page over and over until all buffers on the way are full."""
    with connect(small.metrics_port) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.settimeout(0.2)
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"

        def is_torn() -> bool:
            try:
                end.send(request)
            except TimeoutError:
                pass
            except ConnectionError:
                return True
            return False

        until(is_torn, 60)


@pytest.fixture
def few(version_dir: Path, tmp_path: Path, start_server: Callable[..., Server]) -> Iterator[Server]:
    """Starts a server that allows few connections, whose clients may take as long as usual for a handshake."""
    with start_server(version_dir.parent.parent, tmp_path / "store", max_connections=8) as server:
        yield server


def test_grpc_takes_so_many_connections_and_no_more(few: Server) -> None:
    """Those that are at work stay, and one more is refused; one that is idle gives way."""
    address = f"127.0.0.1:{few.grpc_port}"
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(address, options=own) for _ in range(8)]
    watches = [
        channel.unary_stream("/grpc.health.v1.Health/Watch", response_deserializer=bytes)(b"") for channel in channels
    ]
    try:
        for watch in watches:
            next(watch)
        assert call(address, "ServerLive")[0] is grpc.StatusCode.UNAVAILABLE
        channels[0].unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=30)
        watches[0].cancel()
        answers: list[grpc.StatusCode] = []
        until(lambda: answers.append(call(address, "ServerLive")[0]) or answers[-1] is grpc.StatusCode.OK)
        # It may come before the server knows that the watch was cancelled, but what is let in is answered.
        assert {*answers} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK}
    finally:
        for channel in channels:
            channel.close()
    until(lambda: call(address, "ServerLive")[0] is grpc.StatusCode.OK)


@pytest.mark.slow
def test_grpc_connections_that_say_nothing_are_ended(small: Server) -> None:
    ends = [connect(small.grpc_port) for _ in range(8)]
    try:
        for end in ends:
            assert is_ended(end)
        assert call(f"127.0.0.1:{small.grpc_port}", "ServerLive")[0] is grpc.StatusCode.OK
    finally:
        for end in ends:
            end.close()


@pytest.mark.slow
def test_over_tls_too(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opens handshakes that do not go on, and connections that idle after their handshakes."""
    from serving.http import server as http_module

    monkeypatch.setattr(http_module, "HANDSHAKE_S", 3.0)
    ca = make_ca(tmp_path)
    made = make_certificate(ca, tmp_path, "localhost")
    context = ssl.create_default_context(cafile=ca.certificate)
    with start_server(
        version_dir.parent.parent,
        tmp_path / "store",
        max_connections=4,
        tls_certificate=made.certificate,
        tls_key=made.key,
    ) as server:
        silent = [connect(server.http_port) for _ in range(20)]
        ends: list[ssl.SSLSocket] = []
        try:
            while len(ends) < 20:
                ends.append(context.wrap_socket(connect(server.http_port), server_hostname="localhost"))
            ends[-1].sendall(LIVE)
            assert ends[-1].recv(4096).startswith(b"HTTP/1.1 200")
            for end in silent:
                assert is_ended(end)
        finally:
            for each in (*silent, *ends):
                each.close()


def test_a_hostile_head_costs_little_memory(small: Server) -> None:
    before = psutil.Process().memory_info().rss
    for _ in range(50):
        with connect(small.http_port) as end:
            try:
                end.sendall(b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n")
                end.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n" + b"x: y\r\n" * 50_000 + b"\r\n")
            except ConnectionError:
                pass
            is_ended(end)
    assert psutil.Process().memory_info().rss - before < 32 << 20
