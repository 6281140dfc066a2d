"""Compares one score from four sources: the trainer, the server by each transport and tier, and the third reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tritonclient.http

from tests.e2e.conftest import ROWS, PlainRanker, Served, rows_of
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of

TOLERANCE = 1e-6
REFERENCE_TOLERANCE = 5e-6


@pytest.mark.parametrize("kind", ["deepfm", "dlrm", "din"])
@pytest.mark.parametrize("budget", ["all rows in DRAM", "a tenth in DRAM"])
def test_served_scores_are_the_trainers_through_every_transport(
    models: dict[str, Served], server: ServerProcess, kind: str, budget: str
) -> None:
    served = models[kind]
    name = served.name if budget == "all rows in DRAM" else served.small
    requests = requests_of(server.url, name, served.data, ROWS)
    for transport, scores in ask_all(server.url, server.grpc, name, requests):
        assert scores.shape == (ROWS,)
        difference = np.abs(scores.astype(np.float64) - served.scores).max()
        assert difference <= TOLERANCE, f"{transport}: {difference}"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["deepfm", "dlrm", "din"])
def test_the_third_reference_gives_the_same_scores(models: dict[str, Served], kind: str) -> None:
    served = models[kind]
    reference = ReferenceScorer(served.version).score(rows_of(served.data, ROWS))
    assert np.std(reference) > 0.01, "scores that are all alike compare nothing"
    assert np.abs(reference - served.scores).max() <= REFERENCE_TOLERANCE


def test_a_small_budget_is_answered_by_both_tiers(models: dict[str, Served], server: ServerProcess) -> None:
    served = models["dlrm"]
    requests = requests_of(server.url, served.small, served.data, 2000)
    before = server.metrics()
    assert [transport for transport, _ in ask_all(server.url, server.grpc, served.small, requests)]
    after = server.metrics()
    for tier in ("dram", "ssd"):
        sample = f'emberline_ids_hit_total{{model="{served.small}",tier="{tier}",version="1"}}'
        assert after[sample] > before[sample]
    held = f'emberline_tier_rows{{model="{served.small}",tier="%s",version="1"}}'
    assert after[held % "dram"] <= after[held % "ssd"] / 8


def test_a_plain_torch_module_is_served_with_its_own_scores(
    plain: tuple[PlainRanker, tuple[torch.Tensor, ...]], server: ServerProcess
) -> None:
    module, batch = plain
    with torch.inference_mode():
        expected = module(*batch).numpy()
    client = tritonclient.http.InferenceServerClient(server.url.removeprefix("http://"))
    try:
        metadata = client.get_model_metadata("plain")
        names = [entry["name"] for entry in metadata["inputs"] if not entry["name"].endswith((".lengths", ".valid"))]
        inputs = []
        for name, tensor in zip(names, batch, strict=True):
            array = tensor.numpy().reshape(len(tensor), -1)
            inputs.append(
                tritonclient.http.InferInput(name, list(array.shape), {"i": "INT64", "f": "FP32"}[array.dtype.kind])
            )
            inputs[-1].set_data_from_numpy(array)
        scores = client.infer("plain", inputs).as_numpy(metadata["outputs"][0]["name"])
    finally:
        client.close()
    assert np.abs(scores - expected).max() <= TOLERANCE
