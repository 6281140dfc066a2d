"""Replicas that do not answer keep nobody from asking the others."""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from serving.fleet.peers import Peers
from storage.objects.fleet import Replica

#: The bodies of requests, in the order in which they came.
asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        asked.put(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        body = json.dumps({"served": "a" * 32}).encode() if self.path.endswith("/look") else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - named by http.server


@pytest.fixture
def live() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def replica(name: str, url: str) -> Replica:
    return Replica(id=name, url=url, wake="w" * 16)


def test_those_that_answer_say_what_they_serve(live: str) -> None:
    with contextlib.closing(Peers()) as peers:
        assert peers.wait([replica("one", live)]) == {"one": "ready"}
        assert peers.serve("ranker", [replica("one", live), replica("none", "")]) == {"one": "a" * 32}


def test_asking_wakes_nobody_and_waking_does(live: str) -> None:
    with contextlib.closing(Peers()) as peers:
        while not asked.empty():
            asked.get()
        peers.serve("ranker", [replica("one", live)])
        assert json.loads(asked.get(timeout=5)) == {"wake": "w" * 16, "looks": False}
        peers.wake("ranker", [replica("one", live)])
        assert json.loads(asked.get(timeout=5)) == {"wake": "w" * 16, "looks": True}


def test_what_was_not_asked_in_time_is_not_asked_later(live: str) -> None:
    with contextlib.closing(Peers()) as peers, socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        # Connections are made, and never answered.
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        lost = [replica(f"lost-{number}", url) for number in range(60)]
        for _ in range(3):
            found = peers.wait(lost, timeout_s=0.3)
            assert set(found.values()) == {"unknown"}
        began = time.monotonic()
        # Only what was under way is waited for: at most as long as one request may take.
        assert peers.wait([replica("one", live)], timeout_s=8.0) == {"one": "ready"}
        assert time.monotonic() - began < 6.0
