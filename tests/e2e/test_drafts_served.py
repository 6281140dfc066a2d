"""Every model that takes Criteo's columns, as `emberline init` drafts it: served as it was trained, also after a delta.

Models that read a history are in test_films_served.py. What one task's model answers is computed a second time in
float64 from the published files alone, where the reference knows the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emberline.draft import MODELS, draft
from emberline.draft.network import SEQUENCE_MODELS, TASK_MODELS, TOWERS
from storage import open_delta
from tests.e2e.conftest import rows_of
from tests.e2e.storm_clients import Operator
from tests.e2e.test_storm import set_options
from tests.reference.models import MODELS as REFERENCES
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_every_output, requests_of
from trainer import load_config, load_trained, train, update
from trainer.config import TrainConfig
from trainer.datasets import write_criteo_like

pytestmark = pytest.mark.long

CONFIG = Path(__file__).parents[2] / "trainer" / "configs" / "criteo_like.yaml"
WRITTEN = "criteo_like"
NAMES = (WRITTEN, *(model for model in MODELS if model not in SEQUENCE_MODELS))
TRAINED, ROWS = 4000, 200
#: Of an output between the trainer and the server, both in float32, by its size; of the reference.
SAME, TOLERANCE = 2e-6, 5e-6


def config_of(data: Path, name: str) -> TrainConfig:
    """Returns the bundled configuration, or the draft of a model over the same columns."""
    if name == WRITTEN:
        return load_config(CONFIG)
    labels = ["label", "I8"] if name in TASK_MODELS else ["label"]
    return draft([data], labels, model=name, name=name, item=["C3", "C4", "I2"] if name == TOWERS else []).config


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the data and trains every model on it."""
    place = tmp_path_factory.mktemp("counts")
    write_criteo_like(place, rows=TRAINED)
    for name in NAMES:
        config = config_of(place / "train.parquet", name)
        options: dict[str, Any] = {"valid": place / "test.parquet", "progress": False}
        train(config, place / "train.parquet", output=place / name, repository=place / "models", **options)
        set_options(place / "models" / name, {"live_guard": "false"})
    return place


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("serving")
    with ServerProcess(place / "models", folder / "store", folder / "log") as running:
        yield running


def check(place: Path, server: ServerProcess, name: str, reference: ReferenceScorer | None) -> dict[str, np.ndarray]:
    """Asserts that every output of every transport is the trained module's, and a score the reference's."""
    test = place / "test.parquet"
    expected = {output: values[:ROWS] for output, values in load_trained(place / name).outputs(test).items()}
    requests = requests_of(server.url, name, test, ROWS)
    for transport, served in ask_every_output(server.url, server.grpc, name, requests, list(expected)):
        for output, values in expected.items():
            assert np.std(values) > 0.002, "outputs that are all alike compare nothing"
            allowed = SAME * max(1.0, float(np.abs(values).max()))
            assert np.abs(served[output].reshape(values.shape) - values).max() <= allowed, (transport, output)
    if reference is not None:
        scores = reference.score(rows_of(test, ROWS))
        assert np.abs(expected["score"].reshape(-1) - scores).max() <= TOLERANCE
    return expected


@pytest.mark.parametrize("name", NAMES)
def test_what_is_served_is_what_was_trained_before_and_after_a_delta(
    place: Path, server: ServerProcess, name: str
) -> None:
    kind = load_trained(place / name).config.model.type
    reference = ReferenceScorer(place / "models" / name / "1") if kind in REFERENCES else None
    before = check(place, server, name, reference)
    report = update(place / name, place / "valid.parquet", repository=place / "models", progress=False)
    delta = report.published[-1]
    if reference is not None:
        reference.apply(delta)
    with Operator(server.http_port, name) as operator:
        operator.wait_for(open_delta(delta).snapshot)
    after = check(place, server, name, reference)
    assert all(np.abs(after[output] - before[output]).max() > 1e-4 for output in before)
