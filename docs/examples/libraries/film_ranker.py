"""Trains a DeepFM of torch-rechub with the library's own trainer, and publishes it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.ranking import DeepFM
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import TorchDataset

import emberline

ROWS = {"user": 5_000, "item": 10_000, "gender": 10, "occupation": 100}


def ranker() -> torch.nn.Module:
    """Returns the model, with first weights."""
    sparse = [SparseFeature(name, rows, 16) for name, rows in ROWS.items()]
    dense = [DenseFeature("age")]
    model: torch.nn.Module = DeepFM(sparse + dense, sparse, {"dims": [32, 16], "dropout": 0.1})
    return model


def columns(file: Path) -> dict[str, torch.Tensor]:
    """Returns the columns that the model takes, and the label: ids are made row numbers."""
    table = pq.read_table(file)
    found = {name: torch.from_numpy(table[name].to_numpy() % ROWS[name]) for name in ("user", "item")}
    for name in ("gender", "occupation"):
        numbers = [sum(word.encode()) % ROWS[name] for word in table[name].to_pylist()]
        found[name] = torch.tensor(numbers)
    found["age"] = torch.from_numpy(table["age"].to_numpy().astype(np.float32) / 100)
    found["label"] = torch.from_numpy(table["label"].to_numpy().astype(np.float32))
    return found


def train(data: dict[str, torch.Tensor], folder: Path, start: Path | None) -> torch.nn.Module:
    """Trains for an epoch, beginning with the weights of `start`; the trainer writes folder/model.pth."""
    model = ranker()
    if start is not None:
        model.load_state_dict(torch.load(start, weights_only=True))
    x = {name: values for name, values in data.items() if name != "label"}
    loader: Any = torch.utils.data.DataLoader(TorchDataset(x, data["label"]), batch_size=512, shuffle=True)
    folder.mkdir(parents=True, exist_ok=True)
    CTRTrainer(model, optimizer_params={"lr": 0.005}, n_epoch=1, model_path=str(folder)).fit(loader)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="rated films, as `emberline data movielens` writes them")
    parser.add_argument("--output", type=Path, required=True, help="folder of model.pth and requests.parquet")
    parser.add_argument("--start", type=Path, help="a model.pth to begin with")
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--delta", action="store_true", help="publish what changed since the newest snapshot")
    given = parser.parse_args()
    data = columns(given.data)
    model = train(data, given.output, given.start)
    sample = {name: values[:1000] for name, values in data.items() if name != "label"}
    pq.write_table(
        pa.table({name: values.numpy() for name, values in sample.items()}), given.output / "requests.parquet"
    )
    print(emberline.publish(model, sample, given.repository, name="film_ranker", delta=given.delta))


if __name__ == "__main__":
    main()
