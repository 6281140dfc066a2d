"""Trains a DeepFM of torch-rechub with the library's own trainer."""

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


def rows_of(file: Path) -> dict[str, torch.Tensor]:
    """Returns the first 1,000 rows of a file as the model takes them."""
    return {name: values[:1000] for name, values in columns(file).items() if name != "label"}


def made() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and a batch of it, for `emberline publish`."""
    return ranker(), rows_of(Path("build/movielens/train.parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="rated films, as `emberline data movielens` writes them")
    parser.add_argument("--output", type=Path, required=True, help="folder of model.pth, which the trainer writes")
    parser.add_argument("--start", type=Path, help="a model.pth to begin with")
    given = parser.parse_args()
    torch.manual_seed(0)
    model, data = ranker(), columns(given.data)
    if given.start is not None:
        model.load_state_dict(torch.load(given.start, weights_only=True))
    label = data.pop("label")
    loader: Any = torch.utils.data.DataLoader(TorchDataset(data, label), batch_size=512, shuffle=True)
    given.output.mkdir(parents=True, exist_ok=True)
    rate = 0.005 if given.start is None else 0.001
    CTRTrainer(model, optimizer_params={"lr": rate}, n_epoch=1, model_path=str(given.output)).fit(loader)
    # The same rows as a file, for the load test.
    requests = {name: values.numpy() for name, values in rows_of(given.data).items()}
    pq.write_table(pa.table(requests), given.output / "requests.parquet")


if __name__ == "__main__":
    main()
