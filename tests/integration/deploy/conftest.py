"""A server over a bucket, as the files of deploy/ run it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli import mirror
from serving import Server, ServerConfig
from tests.support.deployment.metrics_page import MetricsPage
from tests.support.deployment.programs import ROOT


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
def metrics_page(server: Server) -> MetricsPage:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        return MetricsPage.of(page.read().decode())
