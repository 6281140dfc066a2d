"""Lookups write stacked inputs in place, in memory of the session that no answer lies in."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving.engine.replay import ModelParts
from serving.engine.validation import validate
from serving.model_config.options import ModelOptions
from serving.pipeline.host import Pipeline
from serving.pipeline.snapshot import Snapshot
from storage import Golden, GraphInput, GraphOutput, TableData, open_version, write_version
from storage.checkpoint import graph_program
from storage.checkpoint.stacked_inputs import StackedInputs, stack_inputs
from storage.features import Column, FeatureBatch, FeatureEngine, FeatureSpec, column_from_numpy
from storage.tiers.tiered import TieredStore

DIM, IDS = 4, 50
NAMES = ("a", "b", "c")
SPEC: dict[str, Any] = {
    "inputs": [{"name": name, "dtype": "INT64"} for name in NAMES] + [{"name": "x", "dtype": "FP32"}],
    "features": [
        *({"name": n, "inputs": [n], "output": "ids", "table": "rows", "pooling": "sum"} for n in NAMES),
        {"name": "x", "inputs": ["x"], "output": "dense", "group": "dense"},
    ],
}


class Model(torch.nn.Module):
    """Returns a score, what it stacks, and an input as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3 * DIM + 1, 1)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        vectors = torch.stack([inputs[name] for name in NAMES], 1)
        return {"score": self.head(torch.cat([vectors.flatten(1), inputs["dense"]], 1)), "vectors": vectors}


class World:
    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(3)
        torch.manual_seed(3)
        module = Model().eval()
        widths = {**dict.fromkeys(NAMES, DIM), "dense": 1}
        example = {name: torch.rand(2, width) for name, width in widths.items()}
        batch = torch.export.Dim("batch", min=1, max=512)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, (example,), dynamic_shapes=({n: {0: batch} for n in example},))
        spec = FeatureSpec.model_validate(SPEC)
        self.engine = FeatureEngine(spec)
        self.rows = rng.standard_normal((IDS, DIM)).astype(np.float32)
        columns, batch_rows = self.columns(rng, 20), 20
        with torch.inference_mode():
            given = {name: torch.from_numpy(self.rows[np.asarray(columns[name].values)]) for name in NAMES}
            made = module({**given, "dense": torch.from_numpy(np.asarray(columns["x"].values)).reshape(-1, 1)})
        path = write_version(
            folder / "stacks",
            version=1,
            spec=spec,
            tables=[TableData("rows", DIM, np.arange(IDS, dtype=np.int64), self.rows, np.zeros(IDS, np.uint8))],
            graph=program,
            graph_inputs=[
                GraphInput(name=n, kind="dense" if n == "dense" else "pooled", source=n, shape=(-1, width))
                for n, width in widths.items()
            ],
            graph_outputs=[GraphOutput(name="score", shape=(-1, 1)), GraphOutput(name="vectors", shape=(-1, 3, DIM))],
            golden=Golden(columns, batch_rows, {name: value.numpy() for name, value in made.items()}, 1e-5),
            max_batch_size=512,
        )
        self.published = open_version(path)
        self.store = TieredStore.open(folder / "store", self.published.tables, dram_bytes=None)
        self.store.load(self.published)
        self.snapshot = Snapshot.of_version(self.published, self.published.graph())
        self.parts = ModelParts(self.published, self.store)

    def columns(self, rng: np.random.Generator, rows: int) -> dict[str, Column]:
        ids = {name: column_from_numpy("INT64", rng.integers(0, IDS, rows)) for name in NAMES}
        return {**ids, "x": column_from_numpy("FP32", rng.random(rows).astype(np.float32))}

    def features(self, rng: np.random.Generator, rows: int) -> FeatureBatch:
        return self.engine.run(self.columns(rng, rows), rows)

    def validate(self) -> None:
        validate(self.parts, None, self.snapshot, self.published.golden(), None, options=ModelOptions())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.store:
        yield made


def expected(world: World, batch: FeatureBatch, snapshot: Snapshot) -> list[np.ndarray]:
    """Returns what the published graph gives, input by input."""
    rows = [torch.from_numpy(world.rows[batch.ids[name].values]) for name in NAMES]
    dense = torch.from_numpy(batch.dense["dense"])
    return [output.numpy().copy() for output in snapshot.graph.run([*rows, dense])]


def test_answers_are_the_same_bits_and_stay_when_the_next_batch_comes(world: World) -> None:
    world.validate()
    stacked = world.snapshot.graph.stacked
    assert stacked is not None
    assert stacked.members == ((3,), (0, 1, 2))
    pipeline = world.parts.pipeline(None)
    rng = np.random.default_rng(9)
    batches = [world.features(rng, rows) for rows in (5, 3, 5, 200, 1, 5)]
    answers = [pipeline.score([batch], world.snapshot) for batch in batches]
    for batch, answer in zip(batches, answers, strict=True):
        assert answer.counts.dram == 3 * batch.batch
        for got, wanted in zip(answer.outputs, expected(world, batch, world.snapshot), strict=True):
            assert got.tobytes() == wanted.tobytes()


def test_memory_is_used_again_and_grows_with_the_largest_batch(world: World) -> None:
    world.validate()
    pipeline = world.parts.pipeline(None)
    assert isinstance(pipeline, Pipeline)
    rng = np.random.default_rng(10)

    def place(rows: int) -> int:
        tensors, _ = pipeline.graph_inputs(world.features(rng, rows), world.snapshot, world.snapshot.graph.stacked)
        assert tensors[1].shape == (rows, 3, DIM)
        return tensors[1].data_ptr()

    large = place(60)
    assert large % 64 == 0
    assert {place(rows) for rows in (1, 60, 7, *range(1, 80), 60)} != {large}  # 61 rows and more moved it
    grown = place(79)
    assert {place(rows) for rows in (1, 60, 79)} == {grown}


def test_weights_that_come_later_are_those_of_the_stacked_graph_too(world: World) -> None:
    world.validate()
    weights = {name: value * 2 for name, value in world.snapshot.graph.weights().items()}
    later = replace(world.snapshot, graph=world.snapshot.graph.with_weights(weights))
    assert later.graph.stacked is not None
    batch = world.features(np.random.default_rng(11), 6)
    pipeline = world.parts.pipeline(None)
    now, then = (pipeline.score([batch], snapshot).outputs[0] for snapshot in (world.snapshot, later))
    assert then.tobytes() == expected(world, batch, later)[0].tobytes()
    assert not np.array_equal(now, then)


def test_a_stacked_graph_that_gives_other_bits_is_not_used(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def turned(*arguments: Any) -> StackedInputs | None:
        found = stack_inputs(*arguments)
        return None if found is None else replace(found, members=((3,), (1, 0, 2)))

    monkeypatch.setattr(graph_program, "stack_inputs", turned)
    with caplog.at_level(logging.INFO):
        world.validate()
    assert world.snapshot.graph.stacked is None
    assert "come one by one: its outputs differ" in caplog.text
    batch = world.features(np.random.default_rng(12), 6)
    outputs = world.parts.pipeline(None).score([batch], world.snapshot).outputs
    for got, wanted in zip(outputs, expected(world, batch, world.snapshot), strict=True):
        assert got.tobytes() == wanted.tobytes()
