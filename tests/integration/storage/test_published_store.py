"""From trained parts to a version on disk, through the store and the graph, to the module's own scores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from storage import Golden, GraphInput, GraphOutput, LookupSpec, TableData, TieredStore, open_version, write_version
from storage.features import FeatureSpec, Jagged, column_from_lists, column_from_numpy

DIM, LENGTH, ITEMS, BATCH = 8, 4, 3000, 256
ROOT = Path(__file__).parents[3]


class Scorer(torch.nn.Module):
    """Model that computes scores from a dense group, a pooled user and an unpooled history."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(2 + 2 * DIM, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = torch.arange(LENGTH) < inputs["history.lengths"][:, None]
        attention = (inputs["history"] * inputs["user"][:, None]).sum(-1).masked_fill(~mask, -1e9).softmax(-1)
        taste = (attention[..., None] * inputs["history"]).sum(1)
        return {"score": torch.sigmoid(self.mlp(torch.cat([inputs["dense"], inputs["user"], taste], 1)))}


SPEC = {
    "inputs": [
        {"name": "price", "dtype": "FP32", "kind": "fixed", "width": 2},
        {"name": "user", "dtype": "INT64", "kind": "fixed", "side": "user"},
        {"name": "history", "dtype": "INT64", "kind": "list"},
    ],
    "features": [
        {"name": "price", "inputs": ["price"], "output": "dense"},
        {"name": "user", "inputs": ["user"], "output": "ids", "table": "user", "pooling": "mean"},
        {
            "name": "history",
            "inputs": ["history"],
            "output": "ids",
            "table": "item",
            "pooling": "none",
            "length": LENGTH,
        },
    ],
}
FEATURES = (LookupSpec("user", "user", "mean"), LookupSpec("history", "item", "none", LENGTH))


class Model:
    """Makes the parts of a version from a seed, and raw requests with the module's scores."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.module = Scorer().eval()
        self.tables = []
        for name, count in (("user", 500), ("item", ITEMS)):
            ids = np.unique(rng.integers(-(2**63), 2**63 - 1, count))
            freq = np.minimum(255, rng.zipf(1.5, count)).astype(np.uint8)
            rows = rng.standard_normal((count, DIM)).astype(np.float32)
            self.tables.append(TableData(name, DIM, ids, rows, freq))
        users, items = self.tables[0].ids, self.tables[1].ids
        self.price = rng.standard_normal((BATCH, 2)).astype(np.float32)
        self.user = rng.choice(np.append(users, [7, 8]), BATCH)
        self.history = [rng.choice(np.append(items, [9]), rng.integers(0, LENGTH + 3)).tolist() for _ in range(BATCH)]

    def tensors(self) -> dict[str, torch.Tensor]:
        found = [dict(zip(table.ids.tolist(), table.rows, strict=True)) for table in self.tables]
        zero = np.zeros(DIM, np.float32)
        history = np.zeros((BATCH, LENGTH, DIM), np.float32)
        for row, bag in enumerate(self.history):
            for position, item in enumerate(bag[:LENGTH]):
                history[row, position] = found[1].get(item, zero)
        return {
            "dense": torch.from_numpy(self.price),
            "user": torch.from_numpy(np.stack([found[0].get(user, zero) for user in self.user.tolist()])),
            "history": torch.from_numpy(history),
            "history.lengths": torch.tensor([min(LENGTH, len(bag)) for bag in self.history]),
        }

    def ids(self) -> list[Jagged]:
        ends = np.cumsum([0, *map(len, self.history)])
        flat = np.array([item for bag in self.history for item in bag], np.int64)
        return [Jagged(self.user.astype(np.int64), np.arange(BATCH + 1)), Jagged(flat, ends)]

    def publish(self, folder: Path) -> Path:
        tensors = self.tensors()
        batch = torch.export.Dim("batch", min=1, max=65_536)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(self.module, (tensors,), dynamic_shapes=({k: {0: batch} for k in tensors},))
        with torch.inference_mode():
            scores = self.module(tensors)["score"].numpy()
        columns = {
            "price": column_from_numpy("FP32", self.price),
            "user": column_from_numpy("INT64", self.user.reshape(-1, 1)),
            "history": column_from_lists("INT64", self.history),
        }
        return write_version(
            folder,
            version=None,
            spec=FeatureSpec.model_validate(SPEC),
            tables=self.tables,
            graph=program,
            graph_inputs=[
                GraphInput(name="dense", kind="dense", source="dense", shape=(-1, 2)),
                GraphInput(name="user", kind="pooled", source="user", shape=(-1, DIM)),
                GraphInput(name="history", kind="rows", source="history", shape=(-1, LENGTH, DIM)),
                GraphInput(name="history.lengths", kind="lengths", source="history", shape=(-1,), dtype="INT64"),
            ],
            graph_outputs=[GraphOutput(name="score", shape=(-1, 1))],
            golden=Golden(columns, BATCH, {"score": scores}),
            metadata={"seed": 1},
        )


def scores_of(path: Path, store_dir: Path, model: Model, dram_bytes: int | None) -> np.ndarray:
    version = open_version(path)
    graph = version.graph()
    golden = version.golden()
    with TieredStore.open(store_dir, version.tables, dram_bytes=dram_bytes) as store:
        store.load(version)
        result = store.plan(FEATURES).lookup(BATCH, model.ids())
    lengths = result.lengths[1]
    assert lengths is not None
    price = golden.columns["price"].values
    assert isinstance(price, np.ndarray)
    inputs = [price.reshape(BATCH, 2), result.outputs[0], result.outputs[1], lengths]
    (score,) = graph.run([torch.from_numpy(np.array(tensor)) for tensor in inputs])
    assert np.abs(score.numpy() - golden.outputs["score"]).max() <= golden.tolerance
    return score.numpy()


def test_the_scores_are_the_modules_whatever_the_budget(tmp_path: Path) -> None:
    model = Model(1)
    path = model.publish(tmp_path / "repository" / "ranker")
    scores = [
        scores_of(path, tmp_path / f"store{budget}", model, budget)
        for budget in (None, 10 << 20, ITEMS * (DIM * 4 + 22) // 10, 500)
    ]
    assert all(other.tobytes() == scores[0].tobytes() for other in scores[1:])
    assert len(np.unique(scores[0])) > BATCH // 2


def test_a_second_version_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for seed, number in ((1, "1"), (2, "2"), (3, "3")):
        model = Model(seed)
        path = model.publish(tmp_path / "repository" / "ranker")
        assert path.name == number
        scores_of(path, tmp_path / "store", model, 20_000)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ssd", "dram"])
def test_a_server_killed_while_loading_loads_again_and_is_right(tmp_path: Path, stage: str) -> None:
    model = Model(4)
    path = model.publish(tmp_path / "repository" / "ranker")
    done = run_python(f"""
        import os, signal
        from storage import TieredStore, open_version
        version = open_version({str(path)!r})
        store = TieredStore.open({str(tmp_path / "store")!r}, version.tables, dram_bytes=20_000)
        def progress(stage, table, done, total):
            if stage == {stage!r} and table == "item":
                os.kill(os.getpid(), signal.SIGKILL)
        store.load(version, progress)
    """)
    assert done.returncode == -signal.SIGKILL, done.stderr
    scores_of(path, tmp_path / "store", model, 20_000)


@pytest.mark.slow
def test_a_publisher_killed_before_the_rename_leaves_no_version(tmp_path: Path) -> None:
    repository = tmp_path / "repository" / "ranker"
    done = run_python(f"""
        import importlib.util, os, signal, sys
        from pathlib import Path
        spec = importlib.util.spec_from_file_location("published_store", {__file__!r})
        module = importlib.util.module_from_spec(spec)
        sys.modules["published_store"] = module
        spec.loader.exec_module(module)
        os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        module.Model(5).publish(Path({str(repository)!r}))
    """)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = [name for name in os.listdir(repository) if name != "config.pbtxt"]
    assert len(left) == 1
    assert left[0].startswith(".publish-")
    model = Model(5)
    path = model.publish(repository)
    assert path.name == "1"
    scores_of(path, tmp_path / "store", model, None)


def test_importing_storage_loads_neither_torch_nor_rocksdb() -> None:
    done = run_python("""
        import sys
        import storage
        import storage.specs, storage.errors
        assert set(storage.__all__) <= set(dir(storage))
        print([name for name in ("torch", "rocksdict", "numpy") if name in sys.modules])
        from storage import TieredStore, open_version, write_version
        print("torch" in sys.modules)
        assert all(getattr(storage, name) is not None for name in storage.__all__)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "False"]
