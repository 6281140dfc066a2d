"""A small real version of a real model, a reference that scores raw rows with Python dicts, and a running server."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from serving import Server, ServerConfig
from serving.engine.model import LoadedModel
from serving.http.native_server import NativeHttpServer
from storage import Golden, GraphInput, GraphOutput, TableData, write_version
from storage.features import FeatureSpec, column_from_rows

DIM, LENGTH, USERS, ITEMS, GOLDEN = 8, 3, 50, 200, 256
TAGS = ["action", "drama", "comedy", "war", ""]

SPEC: dict[str, Any] = {
    "inputs": [
        {"name": "user", "dtype": "INT64", "side": "user"},
        {"name": "history", "dtype": "INT64", "kind": "list", "side": "user", "missing": "null", "max_length": 64},
        {"name": "item", "dtype": "INT64", "column": "item_id", "column_type": "integer"},
        {"name": "tags", "dtype": "BYTES", "kind": "list", "missing": "null"},
        {"name": "price", "dtype": "FP32", "width": 2},
    ],
    "features": [
        {"name": "user", "inputs": ["user"], "output": "ids", "table": "user", "pooling": "sum"},
        {
            "name": "history",
            "inputs": ["history"],
            "output": "ids",
            "table": "item",
            "pooling": "none",
            "length": LENGTH,
        },
        {"name": "item", "inputs": ["item"], "output": "ids", "table": "item", "pooling": "sum"},
        {
            "name": "tags",
            "inputs": ["tags"],
            "transforms": [{"op": "vocabulary", "values": TAGS[:4], "unknown": "absent"}],
            "output": "ids",
            "table": "tag",
            "pooling": "mean",
        },
        {"name": "price", "inputs": ["price"], "output": "dense"},
    ],
}


class Ranker(torch.nn.Module):
    """Dense group, pooled user, item and tags, unpooled history."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(2 + 4 * DIM, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = torch.arange(LENGTH) < inputs["history.lengths"][:, None]
        taste = (inputs["history"] * mask[..., None]).sum(1)
        parts = [inputs["dense"], inputs["user"], inputs["item"], inputs["tags"], taste]
        out = torch.sigmoid(self.mlp(torch.cat(parts, 1)))
        return {"score": out[:, :1], "like": out[:, 1:]}


class Published:
    """The parts of the model, and its scores for raw rows: dicts with the keys of SPEC's inputs."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.module = Ranker().eval()
        self.rows: dict[str, dict[int, np.ndarray]] = {}
        self.tables = []
        for name, count in (("user", USERS), ("item", ITEMS), ("tag", 4)):
            ids = np.arange(4) if name == "tag" else np.unique(rng.integers(-(2**63), 2**63 - 1, count))
            values = rng.standard_normal((len(ids), DIM)).astype(np.float32)
            self.tables.append(TableData(name, DIM, ids, values, np.full(len(ids), 9, np.uint8)))
            self.rows[name] = dict(zip(ids.tolist(), values, strict=True))
        self.users, self.items = list(self.rows["user"]), list(self.rows["item"])
        self._rng = rng

    def random_rows(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Makes raw rows with known and unknown ids, empty and null lists."""
        rng = np.random.default_rng(seed)
        rows = []
        for _ in range(count):
            history = rng.choice([*self.items, 5], rng.integers(0, LENGTH + 3)).tolist()
            tags = [TAGS[i] if i < 5 else "unheard" for i in rng.integers(0, 6, rng.integers(0, 4))]
            rows.append(
                {
                    "user": int(rng.choice([*self.users, 1])),
                    "history": None if rng.random() < 0.1 else history,
                    "item": int(rng.choice([*self.items, -1])),
                    "tags": tags,
                    "price": rng.standard_normal(2).astype(np.float32).tolist(),
                }
            )
        return rows

    def score(self, rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Computes the module's scores: the scores that every transport of the server must return."""
        zero = np.zeros(DIM, np.float32)
        history = np.zeros((len(rows), LENGTH, DIM), np.float32)
        tags = np.zeros((len(rows), DIM), np.float32)
        for index, row in enumerate(rows):
            for position, item in enumerate((row["history"] or [])[:LENGTH]):
                history[index, position] = self.rows["item"].get(item, zero)
            # `unknown: absent` leaves a tag out, so that the mean does not count it.
            found = [self.rows["tag"][TAGS.index(tag)] for tag in row["tags"] or [] if tag in TAGS[:4]]
            if found:
                tags[index] = np.sum(found, axis=0) / len(found)
        inputs = {
            "dense": torch.tensor([row["price"] for row in rows], dtype=torch.float32),
            "user": torch.from_numpy(np.stack([self.rows["user"].get(row["user"], zero) for row in rows])),
            "item": torch.from_numpy(np.stack([self.rows["item"].get(row["item"], zero) for row in rows])),
            "tags": torch.from_numpy(tags),
            "history": torch.from_numpy(history),
            "history.lengths": torch.tensor([min(LENGTH, len(row["history"] or [])) for row in rows]),
        }
        with torch.inference_mode():
            return {name: value.numpy() for name, value in self.module(inputs).items()}

    def publish(self, model_dir: Path, *, version: int | None = None, wrong_by: float = 0.0) -> Path:
        """Publishes the model as a version.

        wrong_by: falsifies the golden scores.
        """
        rows = self.random_rows(GOLDEN, 1)
        shapes = {"dense": (2,), "user": (DIM,), "item": (DIM,), "tags": (DIM,), "history": (LENGTH, DIM)}
        tensors = {name: torch.zeros(2, *shape) for name, shape in shapes.items()}
        tensors["history.lengths"] = torch.ones(2, dtype=torch.int64)
        batch = torch.export.Dim("batch", min=1, max=65_536)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                self.module, (tensors,), dynamic_shapes=({name: {0: batch} for name in tensors},)
            )
        kinds: dict[str, Literal["dense", "rows"]] = {"dense": "dense", "history": "rows"}
        inputs = [
            GraphInput(name=name, kind=kinds.get(name, "pooled"), source=name, shape=(-1, *shape))
            for name, shape in shapes.items()
        ]
        inputs.append(GraphInput(name="history.lengths", kind="lengths", source="history", shape=(-1,), dtype="INT64"))
        spec = FeatureSpec.model_validate(SPEC)
        columns = {e.name: column_from_rows(e, [row[e.name] for row in rows]) for e in spec.inputs}
        outputs = {name: values + np.float32(wrong_by) for name, values in self.score(rows).items()}
        return write_version(
            model_dir,
            version=version,
            spec=spec,
            tables=self.tables,
            graph=program,
            graph_inputs=inputs,
            graph_outputs=[GraphOutput(name=name, shape=(-1, 1)) for name in outputs],
            golden=Golden(columns, GOLDEN, outputs, 1e-5),
            max_batch_size=64,
        )


def loaded_model(server: Server, version: str = "") -> LoadedModel:
    """Returns the loaded version of the model `ranker`: the one that is served, unless a version is named."""
    found = server.repository.get("ranker", version)
    assert isinstance(found, LoadedModel)
    return found


@pytest.fixture(scope="session")
def published() -> Published:
    return Published(3)


@pytest.fixture(scope="session")
def version_dir(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Publishes a version to copy from; read only."""
    return published.publish(tmp_path_factory.mktemp("published") / "ranker")


@pytest.fixture
def repository(version_dir: Path, tmp_path: Path) -> Path:
    """Makes a separate repository with a copy of the version."""
    shutil.copytree(version_dir.parent, tmp_path / "repository" / "ranker")
    config = tmp_path / "repository" / "ranker" / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 2", "count: 1"))  # `server` may have changed it
    return tmp_path / "repository"


def append_config(repository: Path, text: str) -> None:
    """Adds lines to the model's config.pbtxt; a `dynamic_batching` in them replaces the one that is there."""
    config = repository / "ranker" / "config.pbtxt"
    kept = config.read_text()
    if "dynamic_batching" in text:
        kept = kept.replace("dynamic_batching {\n}", "")
    config.write_text(kept + text)


@pytest.fixture(scope="session")
def start_server() -> Callable[..., Server]:
    def start(repository: Path, store: Path, **options: Any) -> Server:
        """Starts a server; without an access file, everybody is allowed to control it."""
        usual = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "open_admin": "access_file" not in options}
        return Server(ServerConfig(model_repository=repository, store=store, **{**usual, **options})).start()

    return start


@pytest.fixture(scope="session")
def server(
    version_dir: Path, tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]
) -> Iterator[Server]:
    """Starts a server over the model `ranker` with two sessions, for tests that change nothing."""
    config = version_dir.parent / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    running = start_server(version_dir.parent.parent, tmp_path_factory.mktemp("store"), max_body_bytes="1MiB")
    yield running
    running.stop()


@pytest.fixture
def native(server: Server) -> NativeHttpServer:
    assert server.native is not None
    return server.native


@pytest.fixture(scope="session")
def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.http_port}"
