"""Builds a model with every kind of input over a store, and pipelines of the processor and of a GPU that must agree."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from serving.gpu.device_model import DeviceModel
from serving.gpu.driver import Driver
from serving.gpu.pipeline import GpuPipeline
from serving.gpu.tables import open_gpu_tables
from serving.model_config.buckets import GraphSettings
from serving.pipeline.host import Pipeline, RequestFeatures, Scores
from serving.pipeline.snapshot import Snapshot
from serving.pipeline.user_side import SidedBatch, UserSide
from storage import Golden, GraphInput, GraphOutput, TableData, open_version, write_version
from storage.checkpoint.tables import Shard
from storage.features import FeatureBatch, FeatureEngine, FeatureSpec, Jagged, column_from_rows
from storage.hbm.gpus import gpus_of
from storage.hbm.tier import HbmTier
from storage.rows import RowCodec
from storage.specs import TableSpec
from storage.tiers.tiered import TieredStore

ROWS = 64
# name -> dim, row type, rows. Ids are 0, 3, 6, ... and their negatives.
TABLES = {"user": (4, "fp16", 400), "item": (6, "fp32", 900), "tag": (17, "int8", 200)}
# name -> table, pooling, length, the user's side
FEATURES: dict[str, tuple[str, str, int, bool]] = {
    "item": ("item", "sum", 0, False),
    "tags": ("tag", "mean", 0, False),
    "weighed": ("item", "weighted", 0, False),
    "seen": ("item", "none", 3, False),
    "user": ("user", "sum", 0, True),
    "history": ("item", "none", 5, True),
    "liked": ("tag", "mean", 0, True),
}
DENSE = {"what": 2, "who": 1}
SPEC: dict[str, Any] = {
    "inputs": [
        {"name": name, "dtype": "INT64", "kind": "list", "max_length": 50, "side": "user" if of_user else "item"}
        for name, (_, _, _, of_user) in FEATURES.items()
    ]
    + [{"name": "weights", "dtype": "FP32", "kind": "list", "max_length": 50}]
    + [{"name": "age", "dtype": "FP32", "side": "user"}, {"name": "price", "dtype": "FP32"}]
    + [{"name": "size", "dtype": "FP32"}],
    "features": [
        {"name": name, "inputs": [name], "output": "ids", "table": table, "pooling": pooling}
        | ({"length": length} if length else {})
        | ({"weights": "weights"} if pooling == "weighted" else {})
        for name, (table, pooling, length, _) in FEATURES.items()
    ]
    + [{"name": "age", "inputs": ["age"], "output": "dense", "group": "who"}]
    + [{"name": name, "inputs": [name], "output": "dense", "group": "what"} for name in ("price", "size")],
}


def graph_inputs() -> list[GraphInput]:
    """Returns all kinds of inputs: rows, masks and lengths of unpooled features, bags of the others, dense groups."""
    inputs: list[GraphInput] = []
    for name, (table, pooling, length, _) in FEATURES.items():
        dim = TABLES[table][0]
        if pooling != "none":
            inputs.append(GraphInput(name=name, kind="pooled", source=name, shape=(-1, dim)))
            continue
        inputs += [
            GraphInput(name=name, kind="rows", source=name, shape=(-1, length, dim)),
            GraphInput(name=f"{name}_mask", kind="mask", source=name, shape=(-1, length), dtype="BOOL"),
            GraphInput(name=f"{name}_lengths", kind="lengths", source=name, shape=(-1,), dtype="INT64"),
        ]
    dense = [GraphInput(name=name, kind="dense", source=name, shape=(-1, width)) for name, width in DENSE.items()]
    return [dense[0], *inputs, dense[1]]


class Everything(torch.nn.Module):
    """Returns all inputs, scaled, so that a wrong byte anywhere shows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([1.0]))

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"score": torch.cat([value.float().flatten(1) if value.dim() > 1 else value.float()[:, None]
                                    for value in inputs.values()], 1) * self.scale}  # fmt: skip


@dataclass
class GpuDelta:
    """A delta in memory."""

    snapshot: str
    #: table -> ids ascending and rows
    rows: dict[str, tuple[np.ndarray, np.ndarray]]
    #: table -> ids ascending
    gone: dict[str, np.ndarray]
    path: Path = Path("delta")

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(TableSpec(name, *TABLES[name][:2], len(ids)) for name, (ids, _) in self.rows.items())

    def shards(self, table: str) -> Iterator[Shard]:
        ids, rows = self.rows[table]
        yield Shard(ids, rows, np.zeros(len(ids), np.uint8), RowCodec(TABLES[table][1], TABLES[table][0]))

    def removed(self, table: str) -> np.ndarray:
        return self.gone[table]


class ModelWorld:
    """One version on disk and its store. requests, graph: of the published version."""

    def __init__(
        self, folder: Path, *, dram_bytes: int | None = None, change: Callable[[list[GraphInput]], object] | None = None
    ) -> None:
        """change: called with the list of the graph's inputs, to modify it."""
        rng = np.random.default_rng(4)
        inputs = graph_inputs()
        if change is not None:
            change(inputs)
        dtypes = {"FP32": torch.float32, "INT64": torch.int64, "BOOL": torch.bool}
        example = {entry.name: torch.zeros((2, *entry.shape[1:]), dtype=dtypes[entry.dtype]) for entry in inputs}
        batch = torch.export.Dim("batch", min=1, max=4096)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                Everything().eval(), (example,), dynamic_shapes=({name: {0: batch} for name in example},)
            )
        spec = FeatureSpec.model_validate(SPEC)
        tables = []
        for name, (dim, row_type, count) in TABLES.items():
            ids = np.arange(-count // 2, count // 2, dtype=np.int64) * 3
            rows = rng.standard_normal((count, dim)).astype(np.float32)
            tables.append(TableData(name, dim, ids, rows, rng.integers(0, 200, count).astype(np.uint8), row_type))
        width = sum(int(np.prod(entry.shape[1:])) for entry in inputs)
        columns = {entry.name: column_from_rows(entry, [[0] if entry.kind == "list" else 0]) for entry in spec.inputs}
        path = write_version(
            folder / "model",
            version=1,
            spec=spec,
            tables=tables,
            graph=program,
            graph_inputs=inputs,
            graph_outputs=[GraphOutput(name="score", shape=(-1, width))],
            golden=Golden(columns, 1, {"score": np.zeros((1, width), np.float32)}, 1e-5),  # nobody replays it
            max_batch_size=ROWS,
        )
        self.published = open_version(path)
        self.spec = self.published.spec
        self.graph = self.published.manifest.graph
        self.side = UserSide.of(self.spec, self.graph)
        assert self.side is not None
        self.side.is_on = True
        self.places = self.side.places(self.graph)
        self.requests = RequestFeatures(FeatureEngine(self.spec), self.side)
        self.store = TieredStore.open(folder / "store", self.published.tables, dram_bytes=dram_bytes)
        self.store.load(self.published)
        self.first = Snapshot.of_version(self.published, self.published.graph())
        self.processor = Pipeline(self.spec, self.requests, self.store, self.graph, None)

    def snapshot(self, mask: int) -> Snapshot:
        return replace(self.first, mask=mask)

    def model(
        self,
        driver: Driver,
        hbm_bytes: int | None,
        buckets: GraphSettings | None = None,
        *,
        filled: bool = True,
        shares_rows: bool = False,
    ) -> DeviceModel:
        """Returns the model on a GPU.

        hbm_bytes: as the option. filled: wait until the GPU has the hottest rows. shares_rows: share rows with other
        GPUs.
        """
        settings = buckets or GraphSettings()
        model = DeviceModel(
            "model/1", driver, self.first.graph, self.graph, self.places, ROWS, settings, busy_wait=False
        )
        model.gpu = open_gpu_tables(
            "model/1",
            driver,
            self.spec,
            self.store,
            self.graph,
            self.places,
            model.inputs,
            hbm_bytes,
            shares_rows=shares_rows,
        )
        if filled and model.gpu is not None:
            assert gpus_of(self.store).wait_filled(60)
        return model

    def pipeline(self, model: DeviceModel, *, timeout_s: float | None = None, first: bool = True) -> GpuPipeline:
        """Returns the prepared pipeline of a session; without `first`, that of replays."""
        pipeline = GpuPipeline(
            self.spec,
            self.requests,
            self.store,
            self.graph,
            self.places,
            timeout_s,
            model,
            None,
            self.first if first else None,
        )
        pipeline.prepare()
        if first:
            pipeline.begin_requests()
        return pipeline

    def tier(self) -> HbmTier:
        return gpus_of(self.store).tiers[0]

    def delta(self, rng: np.random.Generator, changed: int = 40) -> GpuDelta:
        """Changes, adds and removes some rows of each table."""
        rows, gone = {}, {}
        for name, (dim, _, count) in TABLES.items():
            ids = np.sort(rng.choice(np.arange(-count // 2 * 3, count // 2 * 3 + 100), changed, replace=False))
            leave = rng.random(changed) < 0.3
            rows[name] = (ids[~leave], rng.standard_normal((int((~leave).sum()), dim)).astype(np.float32))
            gone[name] = ids[leave]
        return GpuDelta(rng.bytes(16).hex(), rows, gone)

    def batch(self, rng: np.random.Generator, rows: int, *, absent: float = 0.1, most: int = 8) -> FeatureBatch:
        """Returns random bags of at most `most` ids, some empty. absent: share of the ids that no table has."""
        ids = {name: self._bags(rng, name, rows, absent, most) for name in FEATURES}
        dense = {name: rng.random((rows, width)).astype(np.float32) for name, width in DENSE.items()}
        return FeatureBatch(rows, dense, ids)

    def sided(self, rng: np.random.Generator, rows: int, users: int, **options: Any) -> SidedBatch:
        """Returns a batch of `users` users, or of as many as there are rows."""
        assert self.side is not None
        users = min(users, rows)
        user = self.side.parts(self.batch(rng, users, **options))[0]
        item = self.side.parts(self.batch(rng, rows, **options))[1]
        of_rows = np.concatenate([np.arange(users), rng.integers(0, users, rows - users)])
        return SidedBatch(user, item, rng.permutation(of_rows))

    def close(self) -> None:
        self.store.close()

    def _bags(self, rng: np.random.Generator, name: str, rows: int, absent: float, most: int) -> Jagged:
        table, pooling, _, _ = FEATURES[name]
        count = TABLES[table][2]
        lengths = rng.integers(0, most + 1, rows)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
        values = 3 * rng.integers(-count // 2, count // 2, int(offsets[-1]))
        values[rng.random(len(values)) < absent] += 1
        weights = rng.standard_normal(len(values)).astype(np.float32) if pooling == "weighted" else None
        return Jagged(values, offsets, weights)


def agree(world: ModelWorld, pipeline: GpuPipeline, batch: FeatureBatch | SidedBatch, mask: int = 0) -> Scores:
    """Returns the GPU's answer, after checking that it equals the processor's and that both counted the same ids."""
    snapshot = world.snapshot(mask)
    if isinstance(batch, SidedBatch):
        expected, got = world.processor.score_sided(batch, snapshot), pipeline.score_sided(batch, snapshot)
    else:
        expected, got = world.processor.score([batch], snapshot), pipeline.score([batch], snapshot)
    # Bags with missed rows are added in two parts.
    np.testing.assert_allclose(got.outputs[0], expected.outputs[0], rtol=1e-5, atol=2e-6)
    assert got.counts.total() == expected.counts.total()
    assert got.counts.unresolved == 0
    assert got.counts.absent == expected.counts.absent
    return got
