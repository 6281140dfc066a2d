"""A graph that mixes the rows of a batch is detected when it is loaded, and is never padded with zeros."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.engine.model import LoadedModel
from serving.engine.validation import validate
from serving.model_config.options import ModelOptions
from serving.model_config.pbtxt import read_model_config
from serving.pipeline.snapshot import Snapshot
from storage import Golden, GraphInput, GraphOutput, TableData, open_version, write_version
from storage.features import Column, FeatureSpec, column_from_numpy
from storage.tiers.tiered import TieredStore
from tests.simulated_gpu import SimulatedGpus

DIM, ROWS = 4, 20
SPEC = {
    "inputs": [{"name": "item", "dtype": "INT64"}],
    "features": [{"name": "item", "inputs": ["item"], "output": "ids", "table": "item", "pooling": "sum"}],
}
TABLE = np.random.default_rng(3).standard_normal((50, DIM)).astype(np.float32)


class RankInBatch(torch.nn.Module):
    """Returns each row's share of the batch, so that a row's output depends on the other rows."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"share": torch.softmax(inputs["item"].sum(1, keepdim=True), 0)}


def shares(ids: np.ndarray) -> np.ndarray:
    values = np.exp(TABLE[ids].sum(1, keepdims=True).astype(np.float64))
    return (values / values.sum()).astype(np.float32)


def columns(ids: np.ndarray) -> dict[str, Column]:
    return {"item": column_from_numpy("INT64", ids.astype(np.int64))}


@pytest.fixture
def model(tmp_path: Path) -> Iterator[LoadedModel]:
    tensors = {"item": torch.zeros(2, DIM)}
    batch = torch.export.Dim("batch", min=1, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(RankInBatch(), (tensors,), dynamic_shapes=({"item": {0: batch}},))
    golden_ids = np.arange(ROWS)
    path = write_version(
        tmp_path / "mixing",
        version=1,
        spec=FeatureSpec.model_validate(SPEC),
        tables=[TableData("item", DIM, np.arange(50), TABLE, np.full(50, 9, np.uint8))],
        graph=program,
        graph_inputs=[GraphInput(name="item", kind="pooled", source="item", shape=(-1, DIM))],
        graph_outputs=[GraphOutput(name="share", shape=(-1, 1))],
        golden=Golden(columns(golden_ids), ROWS, {"share": shares(golden_ids)}, 1e-5),
        max_batch_size=16 + ROWS,
    )
    (tmp_path / "mixing" / "config.pbtxt").write_text("instance_group { kind: KIND_GPU }")
    published = open_version(path)
    gpus = SimulatedGpus(schedule="random")
    with TieredStore.open(tmp_path / "store", published.tables, dram_bytes=None) as store:
        store.load(published)
        config = read_model_config(tmp_path / "mixing").placed(gpus)
        loaded = LoadedModel(config, published, store, Snapshot.of_version(published, published.graph()), gpus=gpus)
        yield loaded
        loaded.close(10.0)
    assert not gpus.driver(0).errors


def test_only_batches_of_a_graphs_own_size_use_it(model: LoadedModel) -> None:
    gpu = model.parts.devices.models[0]
    golden = Golden(columns(np.arange(ROWS)), ROWS, {"share": shares(np.arange(ROWS))}, 1e-5)
    validate(model.parts, None, model.history.current, golden, None, options=ModelOptions())
    assert [(bucket.low, bucket.size) for bucket in gpu.buckets.all] == [(n, n) for n in (1, 2, 4, 8, 16, 32, 36)]
    before = dict(gpu.counters.batches)
    padded = gpu.counters.padded_rows
    rng = np.random.default_rng(0)
    for rows in (1, 3, 8, 9, 31, 32, 33, 36):
        ids = rng.integers(0, 50, rows)
        got = asyncio.run(model.infer(columns(ids), rows)).outputs[0]
        assert np.abs(got - shares(ids)).max() < 1e-6, rows
    assert gpu.counters.padded_rows == padded
    assert gpu.counters.batches["eager"] - before.get("eager", 0) == 4
    assert gpu.counters.batches["8"] - before["8"] == 1
