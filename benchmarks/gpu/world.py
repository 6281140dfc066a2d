"""Publishes a DLRM for a GPU once, and puts its dense part on the GPU in three precisions. B batch, D dim."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.dlrm_towers import DENSE, SPARSE, Towers
from benchmarks.dlrm_world import spec
from benchmarks.gpu.device import Gpu
from benchmarks.traffic import expected_codes
from loadtest.popularity import zipf
from serving.gpu.context import ExecutionContext
from serving.gpu.device_model import DeviceModel
from serving.model_config.buckets import Bucket, GraphSettings
from storage.checkpoint import DenseGraph, Golden, GraphInput, GraphOutput, TableData, open_version, write_version
from storage.features import Column, column_from_numpy

NAME = "dlrm"
# Rows of each table as it is published; the rows that are looked up are generated, as many as are wanted.
_PUBLISHED_ROWS, _GOLDEN = 64, 256
# A prime, so that there is one rank for each id.
_SCATTER = 2_654_435_761
# Rounding errors of the precisions, including sums in another order.
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2}


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and its batches."""

    dim: int
    #: Hidden widths of the bottom MLP, without its ends.
    bottom: tuple[int, ...]
    #: Hidden widths of the top MLP, without its ends.
    top: tuple[int, ...]
    #: Batch sizes that are measured.
    batches: tuple[int, ...]
    #: Batch size of most parts.
    batch: int
    #: Rows of each of the 26 tables.
    table_rows: int
    #: Row type of the tables.
    row_type: str = "fp16"

    @property
    def widths(self) -> list[tuple[int, int]]:
        """The inputs and outputs of every linear layer."""
        pairs = (SPARSE + 1) * SPARSE // 2
        found: list[tuple[int, int]] = []
        for chain in ((DENSE, *self.bottom, self.dim), (self.dim + pairs, *self.top, 1)):
            found += list(zip(chain, chain[1:], strict=False))
        return found

    @property
    def weights(self) -> int:
        """The number of weights and biases in the layers."""
        return sum(inputs * outputs + outputs for inputs, outputs in self.widths)

    def row_bytes(self) -> int:
        """Returns the bytes of a sample that cross the bus."""
        return 4 * (SPARSE * self.dim + DENSE)

    def flops(self, batch: int) -> float:
        """Returns the operations of a batch: the layers, and the products of all pairs."""
        pairs = 2.0 * (SPARSE + 1) ** 2 * self.dim
        return batch * (sum(2.0 * inputs * outputs for inputs, outputs in self.widths) + pairs)

    def moved_bytes(self, batch: int, item: int) -> float:
        """Returns the least bytes that pass through the GPU's memory.

        Weights and inputs are counted once, each layer's results twice. item: bytes of a number in a product.
        """
        results = sum(outputs for _, outputs in self.widths) + (SPARSE + 1) ** 2
        return item * self.weights + batch * (self.row_bytes() + 2.0 * item * results)


FULL = Sizes(128, (512, 256), (1024, 1024, 512, 256), (64, 512, 2048), 512, 1_000_000)
QUICK = Sizes(128, (512, 256), (1024, 1024, 512, 256), (64, 512, 2048), 512, 50_000)
TOY = Sizes(8, (16,), (32, 16), (4, 16, 64), 64, 100)


class _Dense(nn.Module):
    """The model in its published form, without tables."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.towers = Towers(sizes.dim, sizes.bottom, sizes.top)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = [inputs[f"c{index}"] for index in range(SPARSE)]
        return {"score": self.towers(inputs["dense"], torch.stack(rows, 1))}


class World:
    """Publishes the model as version 1 of folder/dlrm unless it is there already."""

    def __init__(self, folder: Path, sizes: Sizes, *, seed: int = 1) -> None:
        self.sizes = sizes
        self.folder = folder / NAME
        self.rng = np.random.default_rng(seed)
        self._ranks = zipf(sizes.table_rows)
        path = self.folder / "1"
        if not path.exists():
            self._publish(seed)
        self.published = open_version(path)
        self.entry = self.published.manifest.graph
        self._graphs: dict[str, DenseGraph] = {}

    def graph(self, precision: str) -> DenseGraph:
        """Returns the dense graph, with its products in bf16 if that is the precision."""
        kind = "bf16" if precision == "bf16" else "fp32"
        if kind not in self._graphs:
            plain = self.published.graph()
            self._graphs[kind] = plain.lowered("bf16") if kind == "bf16" else plain
        return self._graphs[kind]

    def other_weights(self, graph: DenseGraph, step: int) -> DenseGraph:
        """Returns the same graph with its weights moved a little, as a delta does."""
        moved = {
            name: value * (1.0 + 0.001 * step) if value.dtype == torch.float32 else value
            for name, value in graph.weights().items()
        }
        return graph.with_weights(moved)

    def device_model(
        self, gpu: Gpu, precision: str, sizes: Sequence[int], *, graphs: bool = True, label: str = ""
    ) -> DeviceModel:
        """Returns the model on the GPU, for batches of exactly these sizes. graphs: whether CUDA graphs are used."""
        settings = GraphSettings(graphs, tuple(Bucket(size, size) for size in sizes) if graphs else None)
        return DeviceModel(
            f"{NAME} {label or precision}",
            gpu.driver,
            self.graph(precision),
            self.entry,
            [],
            max(sizes),
            settings,
            tf32=precision == "tf32",
            # As a session does on a machine with two cores or more for each session.
            busy_wait=True,
        )

    def columns(self, batch: int) -> dict[str, Column]:
        """Returns a request: Zipf ids of every table, and dense values."""
        ids = self._ranks.ranks(self.rng, batch * SPARSE).reshape(batch, SPARSE)
        # A fixed permutation of the ranks spreads hot ids.
        ids = (ids * _SCATTER + np.arange(SPARSE)) % self.sizes.table_rows
        dense = self.rng.standard_normal((batch, DENSE)).astype(np.float32)
        return {"ids": column_from_numpy("INT64", ids.astype(np.int64)), "dense": column_from_numpy("FP32", dense)}

    def ranks_of(self, ids: np.ndarray, table: int) -> np.ndarray:
        """Returns the ranks of a table's ids by popularity, 0 the hottest: the inverse of `columns`."""
        rows = self.sizes.table_rows
        found: np.ndarray = (ids - table) % rows * pow(_SCATTER, -1, rows) % rows
        return found

    def use_codes(self) -> np.ndarray:
        """Returns use codes by rank, (table_rows,), as training would have counted them."""
        return expected_codes(self._ranks)

    def _publish(self, seed: int) -> None:
        sizes, rng = self.sizes, self.rng
        torch.manual_seed(seed)
        module = _Dense(sizes).eval()
        inputs = {f"c{index}": torch.zeros(2, sizes.dim) for index in range(SPARSE)} | {"dense": torch.zeros(2, DENSE)}
        batch = torch.export.Dim("batch", min=1, max=1 << 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, (inputs,), dynamic_shapes=({name: {0: batch} for name in inputs},))
        ids = np.arange(_PUBLISHED_ROWS, dtype=np.int64)
        uses = np.full(_PUBLISHED_ROWS, 9, np.uint8)
        rows = [(rng.standard_normal((_PUBLISHED_ROWS, sizes.dim)) * 0.1).astype(np.float32) for _ in range(SPARSE)]
        asked = rng.integers(0, _PUBLISHED_ROWS, (_GOLDEN, SPARSE))
        dense = rng.standard_normal((_GOLDEN, DENSE)).astype(np.float32)
        tensors = {f"c{index}": torch.from_numpy(rows[index][asked[:, index]]) for index in range(SPARSE)}
        with torch.inference_mode():
            scores = module({**tensors, "dense": torch.from_numpy(dense)})["score"].numpy()
        columns = {"ids": column_from_numpy("INT64", asked), "dense": column_from_numpy("FP32", dense)}
        names = [(f"c{index}", "pooled", sizes.dim) for index in range(SPARSE)] + [("dense", "dense", DENSE)]
        write_version(
            self.folder,
            version=1,
            spec=spec(),
            tables=[TableData(f"t{index}", sizes.dim, ids, rows[index], uses) for index in range(SPARSE)],
            graph=program,
            graph_inputs=[GraphInput(name=name, kind=kind, source=name, shape=(-1, w)) for name, kind, w in names],  # type: ignore[arg-type]
            graph_outputs=[GraphOutput(name="score", shape=(-1, 1))],
            golden=Golden(columns, _GOLDEN, {"score": scores}, 1e-5),
            max_batch_size=max(sizes.batches),
        )


class DenseRuns:
    """Runs one session's dense part on one batch in its staging, again and again.

    Not thread-safe: one thread uses it at a time.
    """

    def __init__(self, gpu: Gpu, model: DeviceModel, graph: DenseGraph, rows: int, *, seed: int = 0) -> None:
        """Runs it once: this loads libraries and captures the graph."""
        self.rows = rows
        self.session = ExecutionContext(model)
        self._gpu, self._model, self._graph = gpu, model, graph
        rng = np.random.default_rng(seed)
        self._inputs = []
        for view in self.session.begin(rows):
            view[...] = rng.standard_normal(view.shape) * 0.1
            self._inputs.append(torch.from_numpy(view.copy()))
        self.outputs = self._finish()

    def enter_thread(self) -> None:
        """Makes the calling thread the one that drives this session."""
        self._gpu.driver.enter_thread()

    def whole(self) -> None:
        """Copies the packed inputs to the GPU, computes, and fetches the results."""
        self.session.begin(self.rows)
        self._finish()

    def launch(self) -> None:
        """Computes on the inputs on the GPU and fetches the results; the caller leaves out copies to the GPU."""
        self._finish()

    def check(self, precision: str) -> float:
        """Returns the largest difference to the processor's scores. Raises AssertionError when it is too large."""
        expected = self._graph.run(self._inputs)[0].numpy()
        worst = float(np.abs(self._finish()[0] - expected).max())
        if not worst <= TOLERANCE[precision]:
            raise AssertionError(
                f"{precision}: scores differ by {worst:.3g} from the processor's: figures mean nothing"
            )
        return worst

    def close(self) -> None:
        """Frees the memory."""
        self.session.close()

    def _finish(self) -> list[np.ndarray]:
        with self._model.weight_slots.pinned(self._graph) as weight_slot:
            return self.session.finish(weight_slot)
