"""Tests that native code answers plain requests of curl, and of clients behind nginx and HAProxy.

    python -m tests.external.curl_and_proxies

The metric emberline_http_native_requests_total says who has answered: each check states by how much it rises. Prints a
line for each; exit code 0 when all hold, 1 when one does not, 2 when the proxies could not be had.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton_http

from benchmarks.peers import PeerMissingError
from tests.external.proxies import HAPROXY, NGINX, documented
from tests.integration.serving.conftest import Published
from tests.integration.serving.native_clients import LENGTH, PATH, body_of, tensors
from tests.support.proxies import FOLDER, fetch, running
from tests.support.server_process import ServerProcess, free_ports

ROWS = 5
# Keeps connections to the server, so that requests of many clients share them.
KEPT = """
upstream kept {{ server 127.0.0.1:{http}; keepalive 4; }}
server {{
    listen 127.0.0.1:{listen};
    client_max_body_size 64m;
    location / {{
        proxy_pass http://kept;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }}
}}
"""
# Check: what it is, how many requests native code answers, and the check itself.
Check = tuple[str, int, Callable[[], None]]


class Clients:
    """Sends requests for the same rows through different clients, and checks the scores."""

    def __init__(self, published: Published, folder: Path) -> None:
        self._values = tensors(published, ROWS)
        raw = published.random_rows(ROWS, 1)
        self._scores = published.score([{**row, "history": None, "tags": []} for row in raw])
        body, length = body_of(self._values)
        self.length = f"{LENGTH}: {length}"
        self._body, self._packed = folder / "body", folder / "packed"
        self._body.write_bytes(body)
        self._packed.write_bytes(gzip.compress(body))

    def curl(self, port: int, *options: str, packed: bool = False, status: int = 200) -> None:
        """Sends a request by curl and checks its answer."""
        body = self._packed if packed else self._body
        target = [f"http://127.0.0.1:{port}{PATH}", "--data-binary", f"@{body}", "-H", self.length]
        content = self._run(*target, *options)
        head, _, rest = content.rpartition(b"\r\n\r\n{")
        lines = head.rpartition(b"\r\n\r\n")[2].split(b"\r\n")
        assert lines[0].split(b" ")[1] == b"%d" % status, lines
        if status == 200:
            found = {line.partition(b": ")[0].lower(): line.partition(b": ")[2] for line in lines}
            self._check(b"{" + rest, int(found[LENGTH.lower().encode()]))

    def curl_many(self, port: int, count: int, *, looks: bool) -> None:
        """Sends several requests by curl on one connection. looks: each behind a request for something else."""
        url = f"http://127.0.0.1:{port}"
        one = [f"{url}{PATH}", "--data-binary", f"@{self._body}", "-H", self.length]
        look = [f"{url}/v2/models/ranker", "--next"] if looks else []
        parts = [*look, *one]
        for _ in range(count - 1):
            parts += ["--next", *look, *one]
        content = self._run(*parts)
        assert content.count(b"HTTP/1.1 200 OK\r\n") == count * (2 if looks else 1), content[:500]

    def triton(self, port: int, **options: Any) -> None:
        """Sends a request by tritonclient and checks its answer."""
        with triton_http.InferenceServerClient(f"127.0.0.1:{port}") as client:
            entries = []
            for name, values in self._values.items():
                names = {"int64": "INT64", "float32": "FP32"}
                entry = triton_http.InferInput(name, list(values.shape), names[values.dtype.name])
                entry.set_data_from_numpy(values)
                entries.append(entry)
            answer = client.infer("ranker", entries, **options)
            for name, expected in self._scores.items():
                np.testing.assert_allclose(answer.as_numpy(name), expected, atol=1e-5)

    def crowd(self, port: int) -> None:
        """Sends 400 requests by eight clients at once, every other one compressed or for something else."""

        def client(number: int) -> None:
            for turn in range(50):
                if turn % 2 == 0:
                    self.triton(port)
                elif number % 2 == 0:
                    self.triton(port, request_compression_algorithm="gzip", response_compression_algorithm="gzip")
                else:
                    with triton_http.InferenceServerClient(f"127.0.0.1:{port}") as looks:
                        assert looks.get_model_metadata("ranker")["name"] == "ranker"

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(client, range(8)))

    def _run(self, *arguments: str) -> bytes:
        command = ["curl", "--silent", "--show-error", "--include", "--max-time", "30", *arguments]
        # --include belongs to one transfer of several.
        command = [part for each in command for part in (("--next", "--include") if each == "--next" else (each,))]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def _check(self, content: bytes, length: int) -> None:
        at = length
        for entry in json.loads(content[:length])["outputs"]:
            found = np.frombuffer(content, np.float32, ROWS, at).reshape(ROWS, 1)
            np.testing.assert_allclose(found, self._scores[entry["name"]], atol=1e-5)
            at += 4 * ROWS
        assert at == len(content)


def by_curl(clients: Clients, port: int) -> Iterator[Check]:
    """Yields the checks of curl without a proxy."""
    curl = clients.curl
    yield "curl", 1, lambda: curl(port)
    yield "curl, content type of its own", 1, lambda: curl(port, "-H", "Content-Type: application/octet-stream")
    yield "curl --http1.0", 0, lambda: curl(port, "--http1.0")
    yield "curl, chunked", 0, lambda: curl(port, "-H", "Transfer-Encoding: chunked")
    yield "curl, gzip request", 0, lambda: curl(port, "-H", "Content-Encoding: gzip", packed=True)
    yield "curl --compressed", 1, lambda: curl(port, "--compressed")
    yield "curl, Expect", 0, lambda: curl(port, "-H", "Expect: 100-continue")
    yield "curl --http2, an offer", 0, lambda: curl(port, "--http2")
    yield "curl, Connection: close", 0, lambda: curl(port, "-H", "Connection: close")
    yield "curl, a token that nobody asks for", 0, lambda: curl(port, "-H", "Authorization: Bearer x")
    yield "curl, PUT", 0, lambda: curl(port, "-X", "PUT", status=405)
    yield "curl, five on a connection", 5, lambda: clients.curl_many(port, 5, looks=False)
    yield "curl, five between other requests", 5, lambda: clients.curl_many(port, 5, looks=True)


def by_proxy(clients: Clients, port: int, what: str, *, keeps_1_0: bool) -> Iterator[Check]:
    """Yields the checks of a proxy. keeps_1_0: it passes HTTP/1.0 on as such."""
    curl, triton = clients.curl, clients.triton
    yield f"{what}: tritonclient", 1, lambda: triton(port)
    yield (
        f"{what}: tritonclient, gzip both ways",
        0,
        lambda: triton(port, request_compression_algorithm="gzip", response_compression_algorithm="gzip"),
    )
    yield f"{what}: tritonclient, gzip answers", 1, lambda: triton(port, response_compression_algorithm="gzip")
    yield f"{what}: curl", 1, lambda: curl(port)
    yield f"{what}: curl --http1.0", int(not keeps_1_0), lambda: curl(port, "--http1.0")
    # nginx reads all of a request's body before it sends it on, with a length; HAProxy passes the chunks on.
    yield (
        f"{what}: curl, chunked",
        int(what.startswith("nginx")),
        lambda: curl(port, "-H", "Transfer-Encoding: chunked"),
    )
    yield f"{what}: curl, gzip request", 0, lambda: curl(port, "-H", "Content-Encoding: gzip", packed=True)
    # nginx answers it itself.
    yield f"{what}: curl, Expect", int(what.startswith("nginx")), lambda: curl(port, "-H", "Expect: 100-continue")
    yield f"{what}: curl --http2, an offer", 1 if what.startswith("nginx") else 0, lambda: curl(port, "--http2")
    yield f"{what}: curl, Connection: close", 1, lambda: curl(port, "-H", "Connection: close")
    yield f"{what}: curl, five between other requests", 5, lambda: clients.curl_many(port, 5, looks=True)
    yield f"{what}: eight clients at once, 400 requests", 200, lambda: clients.crowd(port)


def checks(clients: Clients, server: ServerProcess, folder: Path) -> Iterator[Check]:
    """Yields all checks, with the proxies running where they are needed."""
    yield from by_curl(clients, server.http_port)
    plain, kept, http, grpc = free_ports(4)
    servers = documented(server.http_port, plain) + KEPT.format(http=server.http_port, listen=kept)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, servers=servers))
    program = FOLDER / "usr" / "sbin"
    command = [program / "nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    with running(command, folder / "nginx.log", [plain, kept]):
        yield from by_proxy(clients, plain, "nginx, documented lines", keeps_1_0=False)
        yield from by_proxy(clients, kept, "nginx, kept connections", keeps_1_0=False)
    ports = {"listen": http, "listen_grpc": grpc, "http": server.http_port, "grpc": server.grpc_port}
    (folder / "haproxy.cfg").write_text(HAPROXY.format(folder=folder, **ports))
    with running([program / "haproxy", "-f", folder / "haproxy.cfg"], folder / "haproxy.log", [http]):
        yield from by_proxy(clients, http, "HAProxy", keeps_1_0=True)


def main() -> int:
    """Runs all checks."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.curl_and_proxies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    try:
        fetch()
    except (PeerMissingError, OSError) as error:
        print(f"skipped: the proxies could not be had: {error}", file=sys.stderr)
        return 2
    published = Published(3)
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        published.publish(folder / "models" / "ranker")
        clients = Clients(published, folder)
        with ServerProcess(folder / "models", folder / "store", folder / "log") as server:

            def answered() -> float:
                return server.metrics()["emberline_http_native_requests_total"]

            for what, natively, check in checks(clients, server, folder):
                before = answered()
                try:
                    check()
                    rise = answered() - before
                    assert rise == natively, f"native code answered {rise:g} requests, not {natively}"
                    word = f"passed, {natively} natively"
                except (Exception, subprocess.CalledProcessError) as error:
                    failed += 1
                    word = f"FAILED: {type(error).__name__} {str(error)[:300]}"
                print(f"{what:<60} {word}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
