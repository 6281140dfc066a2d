"""A tiny published version whose scores can be computed by hand, its store, and the model made of both."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.engine.model import LoadedModel
from serving.gpu.driver import Gpus
from serving.model_config.pbtxt import read_model_config
from serving.pipeline.snapshot import Snapshot
from storage import Golden, GraphInput, GraphOutput, PublishedVersion, TableData, open_version, write_version
from storage.checkpoint import DenseGraph
from storage.features import Column, FeatureSpec, column_from_numpy
from storage.tiers.tiered import TieredStore

DIM, ITEMS, GOLDEN = 4, 500, 100
SPEC = {
    "inputs": [{"name": "item", "dtype": "INT64"}, {"name": "price", "dtype": "FP32", "missing": "null"}],
    "features": [
        {"name": "item", "inputs": ["item"], "output": "ids", "table": "item", "pooling": "sum"},
        {"name": "price", "inputs": ["price"], "output": "dense"},
    ],
}


class Scorer(torch.nn.Module):
    """Model that computes sigmoid(scale * (sum of the item's row + price))."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([scale]))

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        total = inputs["item"].sum(1, keepdim=True) + inputs["dense"]
        return {"score": torch.sigmoid(total * self.scale)}


class World:
    """One version on disk.

    `columns` and `score` take raw ids; the price is 0 where it is not given.
    """

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(5)
        self.ids = np.arange(ITEMS, dtype=np.int64)
        self.rows = (rng.standard_normal((ITEMS, DIM)) / 2).astype(np.float32)
        self.golden_ids = rng.integers(0, ITEMS + 20, GOLDEN)
        tensors = {"item": torch.zeros(2, DIM), "dense": torch.zeros(2, 1)}
        batch = torch.export.Dim("batch", min=1, max=4096)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                Scorer().eval(), (tensors,), dynamic_shapes=({name: {0: batch} for name in tensors},)
            )
        self.path = write_version(
            folder / "tiny",
            version=3,
            spec=FeatureSpec.model_validate(SPEC),
            tables=[TableData("item", DIM, self.ids, self.rows, np.full(ITEMS, 9, np.uint8))],
            graph=program,
            graph_inputs=[
                GraphInput(name="item", kind="pooled", source="item", shape=(-1, DIM)),
                GraphInput(name="dense", kind="dense", source="dense", shape=(-1, 1)),
            ],
            graph_outputs=[GraphOutput(name="score", shape=(-1, 1))],
            golden=self.golden(),
            max_batch_size=64,
        )
        self.published: PublishedVersion = open_version(self.path)

    def columns(self, ids: np.ndarray) -> dict[str, Column]:
        return {"item": column_from_numpy("INT64", np.asarray(ids, np.int64))}

    def score(self, ids: np.ndarray, scale: float = 1.0) -> np.ndarray:
        totals = np.array([self.rows[i].sum() if 0 <= i < ITEMS else 0.0 for i in np.asarray(ids)], np.float32)
        values: np.ndarray = 1 / (1 + np.exp(-totals[:, None] * np.float32(scale)))
        return values

    def golden(self, scale: float = 1.0) -> Golden:
        scores = self.score(self.golden_ids, scale)
        return Golden(self.columns(self.golden_ids), GOLDEN, {"score": scores}, 1e-5)

    def snapshot(self, graph: DenseGraph, sequence: int = 0, scale: float = 1.0) -> Snapshot:
        """Makes a snapshot with the same rows and another weight."""
        name = next(iter(graph.weights()))
        changed = graph.with_weights({name: torch.tensor([scale])})
        identity = f"{sequence:032x}" if sequence else self.published.snapshot
        return Snapshot(identity, 3, sequence, 0, changed, 1_700_000_000_000 + sequence, self.path)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def graph(world: World) -> DenseGraph:
    return world.published.graph()


@pytest.fixture(scope="session")
def store(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredStore]:
    """Opens a store that all tests share, since they leave its base rows unchanged."""
    with TieredStore.open(tmp_path_factory.mktemp("store"), world.published.tables, dram_bytes=None) as opened:
        opened.load(world.published)
        yield opened


@pytest.fixture
def make_model(
    world: World, store: TieredStore, graph: DenseGraph, tmp_path: Path
) -> Iterator[Callable[..., LoadedModel]]:
    """Makes models with these lines in their config.pbtxt, and closes them at the end."""
    made: list[LoadedModel] = []

    def make(text: str = "", *, first: Snapshot | None = None, gpus: Gpus | None = None) -> LoadedModel:
        folder = tmp_path / "tiny"
        folder.mkdir(exist_ok=True)
        (folder / "config.pbtxt").write_text(text)
        snapshot = first or Snapshot.of_version(world.published, graph)
        config = read_model_config(folder).placed(gpus)
        model = LoadedModel(config, world.published, store, snapshot, gpus=gpus)
        made.append(model)
        return model

    yield make
    for model in made:
        assert model.close(10.0)
