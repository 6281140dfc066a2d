"""Every configuration over MovieLens' columns: trained by the file alone, served as it was trained, also after a delta.

What is asked of the server is computed a second time in float64 from the published files alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from storage import open_delta
from tests.e2e.conftest import rows_of
from tests.e2e.storm_clients import Operator
from tests.e2e.test_storm import set_options
from tests.reference.scorer import ReferenceScorer
from tests.support.films import made_up_films
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import load_config, load_trained, train, update

pytestmark = pytest.mark.long

FILES = sorted((Path(__file__).parents[2] / "trainer" / "configs").glob("movielens*.yaml"))
#: Those of several tasks are in test_tasks_served.py.
CONFIGS = [path for path in FILES if not load_config(path).tasks]
ROWS = 300
SAME, TOLERANCE = 1e-6, 5e-6


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the data and trains every model on it."""
    place = tmp_path_factory.mktemp("films")
    for name, rows, seed in (("train", 4000, 1), ("newer", 400, 2), ("test", ROWS, 3)):
        pq.write_table(made_up_films(rows, seed), place / f"{name}.parquet")
    for path in CONFIGS:
        config = load_config(path)
        assert config.model_name == path.stem
        train(config, place / "train.parquet", output=place / path.stem, repository=place / "models", progress=False)
        set_options(place / "models" / path.stem, {"live_guard": "false"})
    return place


@pytest.fixture(scope="module")
def server(films: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("serving")
    with ServerProcess(films / "models", place / "store", place / "log") as running:
        yield running


def check(films: Path, server: ServerProcess, name: str, reference: ReferenceScorer) -> np.ndarray:
    """Compares what is served with the trainer's scores and the reference's; returns the trainer's."""
    trained = load_trained(films / name).predict(films / "test.parquet").reshape(-1)
    assert np.std(trained) > 0.01, "scores that are all alike compare nothing"
    expected = reference.score(rows_of(films / "test.parquet", ROWS))
    requests = requests_of(server.url, name, films / "test.parquet", ROWS)
    for transport, scores in ask_all(server.url, server.grpc, name, requests):
        assert np.abs(scores.reshape(-1) - trained).max() <= SAME, transport
        assert np.abs(scores.reshape(-1) - expected).max() <= TOLERANCE, transport
    return trained


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS])
def test_what_is_served_is_what_was_trained_before_and_after_a_delta(
    films: Path, server: ServerProcess, name: str
) -> None:
    reference = ReferenceScorer(films / "models" / name / "1")
    before = check(films, server, name, reference)
    report = update(films / name, films / "newer.parquet", repository=films / "models", progress=False)
    reference.apply(report.published[-1])
    with Operator(server.http_port, name) as operator:
        operator.wait_for(open_delta(report.published[-1]).snapshot)
    after = check(films, server, name, reference)
    assert np.abs(after - before).max() > 1e-3
