"""`emberline forget` names servers that do not answer as they should, and refuses addresses that are none."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emberline.cli.forget_servers import wait_for_server
from emberline.cli.frame import command
from storage.errors import ConfigError
from storage.forgetting import Wanted

SERVED = {"name": "2.0", "id": "b", "version": 2}
STATE = {"served": SERVED, "snapshots": [{"name": "2.0", "id": "b"}], "mode": "following", "stores": ["2"], "kept": []}


class _Handler(http.server.BaseHTTPRequestHandler):
    """Says what is served, and refuses to score."""

    def do_GET(self) -> None:
        self._answer(200, STATE)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(503, {"error": "too many requests wait"})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_that_refuses_the_question_is_not_clean(url: str) -> None:
    found = wait_for_server(url, "ranker", 2, Wanted.of_ids({"users": [7, 8]}), time.monotonic() + 60)
    assert not found.is_clean
    assert "does not say which of the ids have a row: the server answered 503: too many requests wait" in found.left
    assert (found.serves, found.asked) == ("2.0", 0)


def test_an_address_that_is_none_is_refused_before_anything_is_erased(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("7\n")
    words = ["--repository", str(tmp_path), "--table", "users", "--ids", str(tmp_path / "ids.txt")]
    done = CliRunner().invoke(command, ["forget", str(tmp_path), *words, "--url", "server-1:8000"])
    assert isinstance(done.exception, ConfigError)
    assert "--url: expected http://HOST:PORT" in str(done.exception)
