"""Servers for the client guide: the example model, and one with the inputs of the quickstart's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serving import Server, ServerConfig
from tests.integration.clients.guide import ROOT
from trainer import train

ROWS = 600
GENRES = ["Action", "War", "Drama", "Sci-Fi", "Animation"]


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Publishes `movielens` by the quickstart's own configuration, trained a little on made-up clicks."""
    folder = tmp_path_factory.mktemp("films")
    pq.write_table(_clicks(), folder / "clicks.parquet")
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


def _clicks() -> pa.Table:
    rng = np.random.default_rng(1)

    def numbers(low: int, high: int, nulls: float = 0.1) -> list[int | None]:
        return [None if rng.random() < nulls else int(value) for value in rng.integers(low, high, ROWS)]

    def words(known: list[str]) -> list[str | None]:
        return [None if rng.random() < 0.1 else str(word) for word in rng.choice(known, ROWS)]

    def films_seen() -> list[list[int] | None]:
        return [None if rng.random() < 0.1 else rng.integers(1, 400, rng.integers(0, 6)).tolist() for _ in range(ROWS)]

    return pa.table(
        {
            "item": numbers(1, 400, nulls=0.0),
            "genres": [rng.choice(GENRES, rng.integers(0, 4)).tolist() for _ in range(ROWS)],
            "release_year": numbers(1930, 1999),
            "gender": words(["F", "M"]),
            "age": numbers(10, 70),
            "occupation": words(["student", "writer"]),
            "history": pa.array(films_seen(), pa.list_(pa.int64())),
            "disliked": pa.array(films_seen(), pa.list_(pa.int64())),
            "rated_before": numbers(0, 50),
            "like_rate": rng.random(ROWS, np.float32),
            "label": rng.integers(0, 2, ROWS).astype(np.float32),
        }
    )
