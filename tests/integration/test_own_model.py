"""The example of a model and a loop of one's own: what it publishes is served with the scores of its module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.own_model import NAME, SPEC, run, score
from serving import Server, ServerConfig
from storage import open_delta
from storage.features import FeatureEngine
from tests.support.transports import ask_all, requests_of

ROWS = 500


@pytest.mark.slow
def test_the_example_publishes_what_it_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published, model = run(tmp_path, rows=10_000, delta_every_steps=1)
    assert [folder.name for folder in published] == ["1", "000001"]
    assert f"published {published[1]}" in capsys.readouterr().out
    delta = open_delta(published[1])
    assert all(table.rows for table in delta.tables)
    test = tmp_path / "data" / "test.parquet"
    labels, expected = score(model, test, FeatureEngine(SPEC))
    assert np.std(expected) > 0.01
    config = {"model_repository": tmp_path / "models", "store": tmp_path / "store"}
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with Server(ServerConfig.model_validate({**config, **ports})) as server:
        url, grpc = f"http://127.0.0.1:{server.http_port}", f"127.0.0.1:{server.grpc_port}"
        for transport, served in ask_all(url, grpc, NAME, requests_of(url, NAME, test, ROWS)):
            assert np.abs(served - expected[:ROWS]).max() <= 1e-6, transport
    assert set(np.unique(labels)) == {0.0, 1.0}
