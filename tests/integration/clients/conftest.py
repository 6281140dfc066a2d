"""Servers for the client guide: the example model, and one with the inputs of the quickstart's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from serving import Server, ServerConfig
from tests.integration.clients.guide import ROOT
from tests.support.films import made_up_films
from trainer import train

ROWS = 600


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Publishes `movielens` by the quickstart's own configuration, trained a little on made-up clicks."""
    folder = tmp_path_factory.mktemp("films")
    pq.write_table(made_up_films(ROWS), folder / "clicks.parquet")
    config = ROOT / "trainer" / "configs" / "movielens.yaml"
    train(config, folder / "clicks.parquet", output=folder / "run", repository=folder / "models", progress=False)
    return folder / "models" / "movielens"


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs a server over `tiny` alone."""
    with Server(server_config(ROOT / "model_repo", tmp_path_factory.mktemp("store"))) as running:
        yield running


@pytest.fixture(scope="session")
def server(films: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs a server over `tiny` and `movielens`."""
    repository = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "model_repo" / "tiny", repository / "tiny")
    shutil.copytree(films, repository / "movielens")
    with Server(server_config(repository, tmp_path_factory.mktemp("store"), shared_memory=["example-"])) as running:
        yield running


def server_config(repository: Path, store: Path, **options: object) -> ServerConfig:
    """Returns a configuration with free ports."""
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    return ServerConfig.model_validate({"model_repository": repository, "store": store, **ports, **options})
