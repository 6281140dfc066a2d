"""Trains models on generated data with the product's own commands, publishes them, and serves them from one process."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from storage import open_version
from tests.support.server_process import ServerProcess
from tests.support.small_model import SUFFIX, small_model, tenth_of
from trainer import Trained, load_trained, publish, train
from trainer.config import TrainConfig, load_config, parse_text
from trainer.datasets import write_synthetic, write_wide

CONFIGS = Path(__file__).parents[2] / "trainer" / "configs"
ROWS = 10_000

# Lists pooled and as a sequence, a cross, a bucketised number, admission: the parts of a spec that the other two lack.
DIN = """
model_name: din
label: label
inputs:
  - {name: user, dtype: INT64, side: user}
  - {name: item, dtype: INT64}
  - {name: tags, dtype: INT64, kind: list, missing: "null"}
  - {name: price, dtype: FP32}
  - {name: hour, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: user}
  - {name: item, inputs: [item], output: ids, table: item}
  - {name: latest, inputs: [tags], output: ids, table: item, pooling: none, length: 4}
  - {name: tags, inputs: [tags], output: ids, table: tag, pooling: mean}
  - {name: pair, inputs: [item, tags], transforms: [{op: cross, buckets: 1000}], output: ids, table: pair}
  - {name: hour, inputs: [hour], transforms: [{op: bucketise, boundaries: [6, 12, 18]}], output: ids, table: hour}
  - {name: price, inputs: [price], transforms: [{op: log}, {op: clip, max: 3.0}], output: dense}
tables:
  - {name: user, dim: 3, admit_after: 2}
  - {name: item, dim: 4}
  - {name: tag, dim: 4}
  - {name: pair, dim: 2}
  - {name: hour, dim: 2}
model: {type: din, target: item, sequence: latest, hidden: [8], attention: [8]}
optimizer:
  dense: {type: Adam, lr: 0.01}
  sparse: {type: adagrad, lr: 0.1, initial_accumulator: 0.01}
training: {batch_size: 512, epochs: 1}
"""


@dataclass(frozen=True)
class Served:
    """A model and the trainer's scores of the test rows.

    small: the name of the same model with a tenth of its rows in DRAM.
    """

    name: str
    small: str
    trained: Trained
    version: Path
    run: Path
    data: Path
    scores: np.ndarray[Any, Any]


class PlainRanker(torch.nn.Module):
    """Model of plain torch layers, which uses none of our code."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.EmbeddingBag(500, 8, mode="sum")
        self.item = torch.nn.Embedding(300, 8)
        self.top = torch.nn.Sequential(torch.nn.Linear(18, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, words: torch.Tensor, item: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.words(words), self.item(item), dense], dim=1)
        return torch.sigmoid(self.top(joined))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walkthrough")


@pytest.fixture(scope="session")
def models(place: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Served]:
    """Trains deepfm over 40 flat columns, and dlrm and din over lists.

    Each is published twice: whole, and with a tenth of its rows in DRAM. Where several processes run tests, the first
    that needs the models trains them, and each of them gets a copy of its own.
    """
    base = tmp_path_factory.getbasetemp()
    trained = (base if worker_id == "master" else base.parent) / "walkthrough-trained"
    with trained.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (trained / "complete").exists():
            shutil.rmtree(trained, ignore_errors=True)
            train_models(trained)
            (trained / "complete").touch()
    shutil.copytree(trained, place, dirs_exist_ok=True)
    found: dict[str, Served] = {}
    for kind, config, folder in configurations():
        name, data, run = config.model_name, place / folder / "test.parquet", place / f"run_{config.model_name}"
        scores = np.load(place / f"{name}.npy")
        version = place / "models" / name / "1"
        found[kind] = Served(name, name + SUFFIX, load_trained(run), version, run, data, scores)
    return found


def configurations() -> list[tuple[str, TrainConfig, str]]:
    """Returns the type of each model, its configuration, and the folder of its data."""
    wide = load_config(CONFIGS / "wide40.yaml")
    wide = wide.model_copy(update={"training": wide.training.model_copy(update={"epochs": 1, "batch_size": 2048})})
    text = (CONFIGS / "synthetic.yaml").read_text(encoding="utf-8")
    dlrm = parse_text(text.replace("{type: deepfm, hidden: [16]}", "{type: dlrm, bottom: [8], top: [8]}"))
    assert dlrm.model.type == "dlrm"
    return [("deepfm", wide, "wide"), ("din", parse_text(DIN), "synthetic"), ("dlrm", dlrm, "synthetic")]


def train_models(place: Path) -> None:
    """Trains and publishes all of them into a folder, and writes the trainer's scores of the test rows."""
    write_synthetic(place / "synthetic", rows=10 * ROWS, ids=30_000)
    write_wide(place / "wide", rows=10 * ROWS)
    for _, config, folder in configurations():
        data, run = place / folder, place / f"run_{config.model_name}"
        train(config, data / "train.parquet", output=run, progress=False)
        trained = load_trained(run)
        version = trained.publish(place / "models")
        small_model(place / "models", config.model_name, version, dram_bytes=tenth_of(open_version(version)))
        scores = trained.predict(data / "test.parquet")
        assert len(scores) == ROWS
        np.save(place / f"{config.model_name}.npy", scores)


@pytest.fixture(scope="session")
def plain(place: Path) -> tuple[PlainRanker, tuple[torch.Tensor, ...]]:
    """Publishes a module of plain torch layers, trained without our code, as `plain`; returns it with a batch."""
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    module = PlainRanker()
    rows = 300
    batch = (
        torch.randint(0, 500, (rows, 5), generator=generator),
        torch.randint(0, 300, (rows,), generator=generator),
        torch.randn(rows, 2, generator=generator),
    )
    labels = (batch[0][:, :1] % 2).float()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy(module(*batch), labels).backward()
        optimizer.step()
    publish(module, batch, place / "models", name="plain")
    return module.eval(), batch


@pytest.fixture(scope="session")
def server(
    place: Path, models: dict[str, Served], plain: tuple[PlainRanker, tuple[torch.Tensor, ...]]
) -> Iterator[ServerProcess]:
    """Runs `emberline serve` over all of the models."""
    with ServerProcess(place / "models", place / "store", place / "server.log") as running:
        yield running


def rows_of(data: Path, count: int) -> list[dict[str, Any]]:
    """Returns the first rows of a Parquet file as Python dicts."""
    found: list[dict[str, Any]] = pq.read_table(data).slice(0, count).to_pylist()
    return found
