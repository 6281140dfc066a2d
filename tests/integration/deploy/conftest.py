"""A server over a bucket, as the files of deploy/ run it, and a Prometheus."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from emberline.cli import mirror
from serving import Server, ServerConfig
from storage.checkpoint.event_times import EventTimes
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, ask
from tests.simulated_gpu import SimulatedGpus
from tests.support.alerts.caused import sample, until
from tests.support.alerts.prometheus import RULES, Prometheus
from tests.support.alerts.shortened import shortened
from tests.support.deployment.metrics_page import MetricsPage
from tests.support.deployment.programs import ROOT


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the rules of deploy/, whose times are shorter. Each test scrapes its own servers."""
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), shortened(RULES.read_text()))
    with contextlib.closing(running):
        yield running


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a bucket with the example model: a folder that stands for one."""
    url = (tmp_path_factory.mktemp("bucket") / "models").as_uri()
    Path(url.removeprefix("file://")).mkdir()
    done = CliRunner().invoke(mirror.command, [str(ROOT / "model_repo"), url, "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0
    return url


@pytest.fixture(scope="session")
def server(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    config = ServerConfig(
        model_repository=bucket,
        mirror_dir=folder / "mirror",
        store=folder / "store",
        fleet=True,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
    )
    with Server(config) as running:
        yield running


@pytest.fixture(scope="session")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with sessions on a simulated GPU, which has all rows."""
    with Live(tmp_path_factory.mktemp("gpu"), gpus=SimulatedGpus(schedule="lazy", seed=1)) as live:
        live.world.configure("instance_group { kind: KIND_GPU count: 1 }")
        live.version()
        live.start()
        yield live


@pytest.fixture(scope="session")
def with_budget(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a DRAM budget and the curve of its cache, and a delta with times of events."""
    with Live(tmp_path_factory.mktemp("budget"), dram_bytes=4000) as live:
        first = live.version()
        live.start()
        live.reaches(live.delta(first, events=EventTimes.of(np.array([time.time() * 1000], np.int64))))
        rows = live.world.rows_of(first, 200)
        curve = f'emberline_cache_bytes{{model="{NAME}",tables="user,item",version="1"}}'
        until(lambda: bool(ask(live.repository, rows)) and sample(live.server.metrics_port, curve) is not None)
        yield live


@pytest.fixture(scope="session")
def metrics_page(server: Server, on_gpu: Live, with_budget: Live) -> MetricsPage:
    """The metrics that a server of a fleet has, and those that need a GPU, a budget or times of events."""
    found = MetricsPage()
    for each in (server, on_gpu.server, with_budget.server):
        with urllib.request.urlopen(f"http://127.0.0.1:{each.metrics_port}/metrics") as page:
            found = found.joined(MetricsPage.of(page.read().decode()))
    return found
