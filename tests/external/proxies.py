"""Tests this server behind Debian's nginx and HAProxy, configured as in docs/security.md and in the usual way.

    python -m tests.external.proxies

Both are unpacked under build/proxies, and nothing is installed. Prints a line for each check; exit code 0 when all
hold, 1 when one does not, 2 when the programs could not be had.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from benchmarks.peers import PeerMissingError
from tests.integration.serving.identity_models import write_identity
from tests.support.proxies import FOLDER, fetch, running, wait_until
from tests.support.server_process import ServerProcess, free_ports

ROOT = Path(__file__).parents[2]

# The configuration that every guide to websockets has, with control closed. `map` stands outside of `server`.
WEBSOCKETS = """
map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
server {{
    listen 127.0.0.1:{listen};
    client_max_body_size 64m;
    location / {{
        proxy_pass http://127.0.0.1:{http};
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
    location /v2/repository/ {{ deny all; }}
}}
server {{
    listen 127.0.0.1:{listen_grpc} http2;
    location / {{
        grpc_pass grpc://127.0.0.1:{grpc};
        grpc_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
}}
"""
NGINX = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{servers}
}}
"""
HAPROXY = """
global
    stats socket {folder}/stats mode 600
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend http
    bind 127.0.0.1:{listen}
    default_backend http
backend http
    option forwardfor
    option httpchk
    http-check send meth GET uri /v2/health/ready ver HTTP/1.1 hdr Host emberline
    http-check expect status 200
    server one 127.0.0.1:{http} check inter 200ms fall 2 rise 1
frontend grpc
    bind 127.0.0.1:{listen_grpc} proto h2
    default_backend grpc
backend grpc
    option forwardfor
    server one 127.0.0.1:{grpc} proto h2
"""
VALUES = np.arange(8, dtype=np.float32).reshape(2, 4)


def documented(http: int, listen: int) -> str:
    """Returns the server block of docs/security.md, on a port of this machine instead of 443."""
    text = (ROOT / "docs" / "security.md").read_text()
    found = re.search(r"```nginx\n(.*?)```", text, re.DOTALL)
    assert found is not None, "docs/security.md has no nginx lines"
    block = found[1].replace("listen 443 ssl;", f"listen 127.0.0.1:{listen};")
    assert "http://127.0.0.1:8000" in block
    return block.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{http}")


def exchange(port: int, data: bytes, wait_s: float = 1.0) -> bytes:
    """Sends data on a new connection; returns what comes back until it ends or nothing comes for `wait_s` seconds."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as end:
        end.sendall(data)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := end.recv(65_536):
                answer += piece
    return answer


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Returns the bytes of a request.

    headers: additional headers; without any, the connection closes after the request.
    """
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *(headers or ("Connection: close",))]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def infer_http(port: int, **options: Any) -> np.ndarray:
    """Sends a request through tritonclient over HTTP and returns the result."""
    with triton_http.InferenceServerClient(f"127.0.0.1:{port}") as client:
        entry = triton_http.InferInput("in_A", [2, 4], "FP32")
        entry.set_data_from_numpy(VALUES)
        return np.asarray(client.infer("echo", [entry], **options).as_numpy("out_A"))


def infer_grpc(port: int) -> np.ndarray:
    """Sends a request through tritonclient over gRPC and returns the result."""
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        entry = triton_grpc.InferInput("in_A", [2, 4], "FP32")
        entry.set_data_from_numpy(VALUES)
        return np.asarray(client.infer("echo", [entry]).as_numpy("out_A"))


def echoes(port: int) -> None:
    """Checks HTTP, plain and compressed, and a body of a megabyte."""
    assert np.array_equal(infer_http(port), VALUES)
    assert np.array_equal(
        infer_http(port, request_compression_algorithm="gzip", response_compression_algorithm="gzip"), VALUES
    )
    with triton_http.InferenceServerClient(f"127.0.0.1:{port}") as client:
        large = np.random.default_rng(1).random((64, 4096), np.float32)
        entry = triton_http.InferInput("in_A", list(large.shape), "FP32")
        entry.set_data_from_numpy(large)
        assert np.array_equal(client.infer("wide", [entry]).as_numpy("out_A"), large)


def echoes_grpc(port: int) -> None:
    """Checks inference and health over gRPC."""
    assert np.array_equal(infer_grpc(port), VALUES)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        said = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert said.status == health_pb2.HealthCheckResponse.SERVING


def no_segments(http: int, grpc_port: int) -> None:
    """Checks that shared memory is refused to clients behind a proxy."""
    answer = exchange(http, post("/v2/systemsharedmemory/region/x/register", b'{"key":"/echo-x","byte_size":1}'))
    assert b" 403 " in answer.partition(b"\r\n")[0]
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}")
    with client, pytest.raises(InferenceServerException, match="proxy"):
        client.register_system_shared_memory("x", "/echo-x", 1)


def control_is_closed(http: int) -> None:
    """Checks that the proxy's own configuration refuses control requests."""
    for path in ("/v2/repository/models/echo/unload", "/v2/repository/models/echo/load"):
        assert b" 403 " in exchange(http, post(path, b"{}")).partition(b"\r\n")[0], path


def upgrades(http: int, direct: int) -> None:
    """Checks that a request that offers another protocol, with a control request in its body, is one request."""
    hidden = b"POST /v2/repository/models/echo/unload HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)
    framings = (
        (b"Content-Length: %d\r\n" % len(hidden), hidden),
        (b"Transfer-Encoding: chunked\r\n", chunked),
        (b"", hidden),
    )
    for protocol in (b"websocket", b"h2c", b"foo"):
        for framing, body in framings:
            for connection in (b"Upgrade", b"upgrade, keep-alive"):
                head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nUpgrade: %s\r\nConnection: %s\r\n%s\r\n"
                answer = exchange(http, head % (protocol, connection, framing) + body, 0.3)
                statuses = re.findall(rb"HTTP/1\.1 (\d+) ", answer)
                # Without a framing, what follows is a second request; the proxy sees it as one, and refuses it.
                wanted = [[b"400"], [b"400", b"403"]] if not framing else [[b"400"]]
                assert statuses in wanted, (protocol, framing, statuses)
    assert b" 200 " in exchange(direct, b"GET /v2/models/echo/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def check_nginx(server: ServerProcess, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the checks, while nginx runs."""
    plain, websockets, by_grpc = free_ports(3)
    usual = WEBSOCKETS.format(listen=websockets, http=server.http_port, grpc=server.grpc_port, listen_grpc=by_grpc)
    text = NGINX.format(folder=folder, servers=documented(server.http_port, plain) + usual)
    (folder / "nginx.conf").write_text(text)
    command = [FOLDER / "usr" / "sbin" / "nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    with running(command, folder / "nginx.log", [plain, websockets, by_grpc]):
        yield "nginx, documented lines: HTTP", lambda: echoes(plain)
        yield "nginx, documented lines: control is closed", lambda: control_is_closed(plain)
        yield "nginx, documented lines: no segments", lambda: no_segments(plain, by_grpc)
        yield "nginx, websocket lines: HTTP", lambda: echoes(websockets)
        yield "nginx, websocket lines: nothing is smuggled", lambda: upgrades(websockets, server.http_port)
        yield "nginx, websocket lines: no segments", lambda: no_segments(websockets, by_grpc)
        yield "nginx, gRPC", lambda: echoes_grpc(by_grpc)


def check_haproxy(server: ServerProcess, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the checks, while HAProxy runs; the last one stops the server."""
    http, by_grpc = free_ports(2)
    text = HAPROXY.format(folder=folder, listen=http, listen_grpc=by_grpc, http=server.http_port, grpc=server.grpc_port)
    (folder / "haproxy.cfg").write_text(text)

    def state() -> str:
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(folder / "stats"))
            end.sendall(b"show stat\n")
            lines = b"".join(iter(lambda: end.recv(65_536), b"")).decode().splitlines()
        columns = lines[0].lstrip("# ").split(",")
        rows = [dict(zip(columns, line.split(","), strict=False)) for line in lines[1:] if line]
        return next(row["status"] for row in rows if (row["pxname"], row["svname"]) == ("http", "one"))

    def stopped() -> None:
        server.process.terminate()
        wait_until(lambda: state().startswith("DOWN"), "the server to be down for HAProxy")

    with running(
        [FOLDER / "usr" / "sbin" / "haproxy", "-f", folder / "haproxy.cfg"], folder / "haproxy.log", [http, by_grpc]
    ):
        yield "HAProxy: its health check sees the server", lambda: wait_until(lambda: state() == "UP", "UP")
        yield "HAProxy: HTTP", lambda: echoes(http)
        yield "HAProxy: nothing is smuggled", lambda: upgrades_of_haproxy(http, server.http_port)
        yield "HAProxy: no segments", lambda: no_segments(http, by_grpc)
        yield "HAProxy: gRPC", lambda: echoes_grpc(by_grpc)
        yield "HAProxy: a server that stops is taken out", stopped


def upgrades_of_haproxy(http: int, direct: int) -> None:
    """Checks an offer of another protocol, which HAProxy passes on unchanged."""
    hidden = b"POST /v2/repository/models/echo/unload HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    for protocol in ("websocket", "h2c", "foo"):
        offer = post("/v2/models/echo/infer", hidden, f"Upgrade: {protocol}", "Connection: Upgrade")
        answer = exchange(http, offer, 0.3)
        assert re.findall(rb"HTTP/1\.1 (\d+) ", answer) == [b"400"], answer
    assert b" 200 " in exchange(direct, b"GET /v2/models/echo/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def main() -> int:
    """Runs all checks."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.proxies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    try:
        fetch()
    except (PeerMissingError, OSError) as error:
        print(f"skipped: the proxies could not be had: {error}", file=sys.stderr)
        return 2
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        models = Path(name, "models")
        write_identity(models, "echo", {"A": ("FP32", [4])}, max_batch=64)
        write_identity(models, "wide", {"A": ("FP32", [4096])}, max_batch=64)
        for proxy in (check_nginx, check_haproxy):
            folder = Path(name, proxy.__name__)
            folder.mkdir()
            arguments = ["--shared-memory", "echo-"]
            with ServerProcess(
                models, folder / "store", folder / "log", open_admin=True, arguments=arguments
            ) as server:
                for what, check in proxy(server, folder):
                    try:
                        check()
                        word = "passed"
                    except Exception as error:
                        failed += 1
                        word = f"FAILED: {type(error).__name__} {str(error)[:300]}"
                    print(f"{what:<55} {word}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
