"""The launcher of deploy/ray without Ray: it starts a server, notices its end, and lets it drain."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.server import DRAIN_DELAY_S
from tests.support.deployment.command_lines import server_config
from tests.support.deployment.manifests import DEPLOY
from tests.support.server_process import free_ports

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def serve_app() -> Any:
    spec = importlib.util.spec_from_file_location("serve_app", DEPLOY / "ray" / "serve_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_server_is_started_checked_and_drained(serve_app: Any, bucket: str, tmp_path: Path) -> None:
    http, grpc, metrics = free_ports(3)
    options = {
        "model_repository": bucket,
        "mirror_dir": str(tmp_path / "mirror"),
        "store": str(tmp_path / "store"),
        "grpc_port": str(grpc),
        "metrics-port": str(metrics),
    }
    launcher = serve_app.Launcher(options, "127.0.0.1", http_port=http)
    launcher.check()
    assert launcher.url == f"http://127.0.0.1:{http}"

    # Frozen: it lives, and answers nothing.
    server = launcher._process
    (child,) = map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())
    serve_app.HEALTH_TIMEOUT_S = 0.5
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(serve_app.ServerUnhealthyError, match="timed out"):
        launcher.check()
    os.kill(child, signal.SIGCONT)
    assert launcher.stop() == 0
    with pytest.raises(serve_app.ServerUnhealthyError, match="ended with 0"):
        launcher.check()


def test_the_arguments_of_the_example_are_options_of_the_server(serve_app: Any) -> None:
    settings = yaml.safe_load((DEPLOY / "ray" / "serve.yaml").read_text())
    (application,) = settings["applications"]
    assert application["import_path"] == "serve_app:app"
    options, of_ray = serve_app.split(application["args"])
    line = ["emberline", "serve", *serve_app.flags(options)]
    config = server_config(line, {})
    assert config.repository_url == application["args"]["repository"]
    assert config.fleet
    assert of_ray == {"replicas": "3", "cpus": "8", "http_port": "8000"}
    assert settings["http_options"]["port"] not in {8000, config.grpc_port, config.metrics_port}
    assert config.drain_timeout_s + DRAIN_DELAY_S + 30 < serve_app.STOP_TIMEOUT_S


def test_a_server_that_cannot_start_says_so_at_once(serve_app: Any, tmp_path: Path) -> None:
    (http,) = free_ports(1)
    began = time.monotonic()
    with pytest.raises(serve_app.ServerUnhealthyError, match="ended with"):
        serve_app.Launcher({"model_repository": str(tmp_path / "none")}, "127.0.0.1", http_port=http)
    assert time.monotonic() - began < 30
