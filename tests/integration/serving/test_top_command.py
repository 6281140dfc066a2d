"""`emberline top` in a terminal of 80 by 24, against a server that is there, goes away and comes back."""

from __future__ import annotations

import functools
import http.server
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli.frame import command
from emberline.cli.server_call import call_server
from serving import Server, ServerConfig
from storage.errors import Unavailable
from tests.integration.serving.identity_models import write_identity
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME
from tests.support.alerts.caused import repeated
from tests.support.terminal import Terminal

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, dram_bytes=64 << 10) as running:
        version = running.version()
        running.start()
        running.reaches(version)
        yield running


def url_of(live: Live) -> str:
    return f"http://127.0.0.1:{live.server.http_port}"


def test_one_frame_says_what_the_model_did(live: Live) -> None:
    arguments = ["top", "--once", "--interval", "0.1", "--url", url_of(live)]
    found = json.loads(CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).output)
    (model,) = found["models"]
    assert (model["name"], model["ready"], model["snapshot"]) == (NAME, True, "1.0")
    assert model["dram_budget_bytes"] == 64 << 10
    assert model["bytes"]["ssd"] > 0
    assert found["seconds"] >= 0.1
    text = CliRunner(env={"COLUMNS": "80"}).invoke(command, arguments, catch_exceptions=False).output
    assert text.startswith(f"{url_of(live)}   ready")
    assert max(map(len, text.splitlines())) <= 80
    (row, _) = (line.split() for line in text.splitlines() if line.startswith(NAME))
    assert "1.0" in row


def test_a_model_without_snapshots_says_which_version_answers(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "echo", {"A": ("FP32", [1])})
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0)
    with Server(ServerConfig(model_repository=tmp_path / "models", store=tmp_path / "store", **ports)) as server:
        url = f"http://127.0.0.1:{server.http_port}"
        body = {"inputs": [{"name": "in_A", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
        arguments = ["top", "--once", "--interval", "0.5", "--url", url]
        with repeated(lambda: call_server(url, "/v2/models/echo/infer", 10, body), pause_s=0.02):
            found = json.loads(CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).output)
        (model,) = found["models"]
        assert (model["snapshot"], model["versions"]) == (None, ["1"])
        assert model["requests_per_second"] > 0
        assert model["rows_per_second"] > 0
        assert model["failures_per_second"] == 0
        text = CliRunner(env={"COLUMNS": "80"}).invoke(command, arguments, catch_exceptions=False).output
        assert "version 1" in text
        assert "nothing" not in text


def test_the_keys_work_and_a_server_may_go_and_come_back(live: Live) -> None:
    port = live.server.http_port
    line = [sys.executable, "-m", "emberline", "top", "--url", url_of(live), "--interval", "0.2"]
    with Terminal(line, ENVIRONMENT) as terminal:
        terminal.wait_for(NAME)
        terminal.type("s")
        terminal.wait_for("sorted by requests/s")
        terminal.type("p")
        terminal.wait_for("paused")
        terminal.clear()
        terminal.type("p")
        terminal.wait_for(NAME)
        live.stop()
        terminal.wait_for("trying again")
        terminal.clear()
        live.start(http_port=port)
        terminal.wait_for("   ready")
        terminal.type("q")
        assert terminal.wait_end() == 0
        assert b"\x1b[?1049l" in terminal.raw  # the screen is as it was before


def test_control_c_ends_it_and_leaves_the_terminal_in_order(live: Live) -> None:
    line = [sys.executable, "-m", "emberline", "top", "--url", url_of(live)]
    with Terminal(line, {**ENVIRONMENT, "NO_COLOR": "1"}) as terminal:
        terminal.wait_for(NAME)
        terminal.interrupt()
        assert terminal.wait_end() == 130
        assert terminal.text.rstrip().endswith("emberline: interrupted")
        assert b"\x1b[?1049l" in terminal.raw
        assert b"\x1b[3" not in terminal.raw  # no colours


def test_control_z_gives_the_terminal_back_until_it_goes_on(live: Live) -> None:
    line = [sys.executable, "-m", "emberline", "top", "--url", url_of(live), "--interval", "0.2"]
    with Terminal(line, ENVIRONMENT, is_job=True) as terminal:
        terminal.wait_for(NAME)
        assert not terminal.echoes
        terminal.type("\x1a")
        terminal.wait_for_bytes(b"\x1b[?1049l")
        os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
        assert terminal.echoes
        terminal.clear()
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(NAME)
        assert not terminal.echoes
        terminal.type("q")
        assert terminal.wait_end() == 0
        assert terminal.echoes


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_ends_it(url: str) -> None:
    with Terminal([sys.executable, "-m", "emberline", "top", "--url", url], ENVIRONMENT) as terminal:
        assert terminal.wait_end() == 1
        assert "--url: expected http://HOST:PORT" in terminal.text
        assert b"\x1b[?1049l" in terminal.raw


def test_a_page_that_is_no_metrics_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("<html>")
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = CliRunner().invoke(command, ["top", "--once", "--interval", "0.1", "--url", url])
        server.shutdown()
        thread.join()
    assert isinstance(done.exception, Unavailable)
    assert f"{url}/metrics is no page of metrics" in str(done.exception)
