"""A model, a loop and a schedule of your own: Parquet in, a published version and deltas out.

    python -m examples.own_model build/own                        # generates rows, trains, publishes
    emberline serve --model-repository build/own/models           # serves them; deltas appear while it runs

What is Emberline's here: the feature engine, the rows of the tables and their optimizer, and the publisher. The network
and the loop are ordinary torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.features import Column, FeatureEngine, FeatureSpec, column_from_arrow
from trainer import EmbeddingBag, EmbeddingCollection, EmbeddingTable, SparseAdagrad, auc
from trainer.data import to_inputs
from trainer.datasets import write_synthetic
from trainer.evaluate import evaluation_mode
from trainer.publishing import Publisher

NAME, LABEL = "own", "label"
BATCH_ROWS = 1024
# The same transforms run here and in the server. docs/features.md has all of them.
SPEC = FeatureSpec.model_validate(
    {
        "inputs": [
            {"name": "user", "dtype": "INT64", "side": "user"},
            {"name": "item", "dtype": "INT64"},
            {"name": "tags", "dtype": "INT64", "kind": "list", "max_length": 8},
            {"name": "price", "dtype": "FP32"},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "users"},
            {"name": "item", "inputs": ["item"], "output": "ids", "table": "items"},
            {"name": "tags", "inputs": ["tags"], "output": "ids", "table": "tags", "pooling": "mean"},
            {"name": "price", "inputs": ["price"], "transforms": [{"op": "log"}], "output": "dense"},
        ],
    }
)


class GatedFields(nn.Module):
    """Weighs each field by what all fields say together, then sums linear weights and an MLP."""

    def __init__(self, tables: dict[str, EmbeddingTable], dim: int) -> None:
        super().__init__()
        bags = {
            "user": EmbeddingBag(tables["users"]),
            "item": EmbeddingBag(tables["items"]),
            "tags": EmbeddingBag(tables["tags"], "mean"),
        }
        self.embeddings = EmbeddingCollection(bags)
        self.gate = nn.Sequential(nn.Linear(len(bags), 8), nn.ReLU(), nn.Linear(8, len(bags)), nn.Sigmoid())
        self.deep = nn.Sequential(nn.Linear(len(bags) * dim + 1, 32), nn.ReLU(), nn.Linear(32, 1))

    def logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """The log-odds, (B, 1)."""
        fields = self.embeddings(inputs).stacked()  # (B, F, D)
        weighed = fields * self.gate(fields.sum(dim=2)).unsqueeze(2)
        linear = fields[:, :, 0].sum(dim=1, keepdim=True)
        logits: Tensor = linear + self.deep(torch.cat([weighed.flatten(1), inputs["dense"]], dim=1))
        return logits

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"score": torch.sigmoid(self.logits(inputs))}


@dataclass(frozen=True)
class Batch:
    """Raw columns, what the feature engine makes of them, and labels (B, 1)."""

    columns: dict[str, Column]
    inputs: dict[str, Tensor]
    labels: Tensor


def batches(path: Path, engine: FeatureEngine, rows: int = BATCH_ROWS) -> Iterator[Batch]:
    """Reads a Parquet file."""
    wanted = [*(entry.source for entry in SPEC.inputs), LABEL]
    for table in pq.ParquetFile(path).iter_batches(rows, columns=wanted):
        columns = {entry.name: column_from_arrow(table.column(entry.source), entry) for entry in SPEC.inputs}
        labels = torch.from_numpy(table.column(LABEL).to_numpy().astype(np.float32)).unsqueeze(1)
        yield Batch(columns, to_inputs(engine.run(columns, table.num_rows)), labels)


def score(model: GatedFields, path: Path, engine: FeatureEngine) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and scores of a Parquet file, (N,) each."""
    with evaluation_mode(model), torch.inference_mode():
        found = [(batch.labels, model(batch.inputs)["score"]) for batch in batches(path, engine, 4096)]
    labels, scores = (torch.cat(each).numpy().reshape(-1) for each in zip(*found, strict=True))
    return labels, scores


def run(work: Path, *, rows: int, delta_every_steps: int) -> tuple[list[Path], GatedFields]:
    """Trains on the older rows, publishes a version, then a delta now and then while it trains on the newer ones."""
    write_synthetic(work / "data", rows=rows, ids=max(rows // 4, 1000))
    engine = FeatureEngine(SPEC)
    torch.manual_seed(1)
    dim = 8
    tables = {name: EmbeddingTable(name, dim, optimizer="adagrad", admit_after=2) for name in SPEC.table_names}
    model = GatedFields(tables, dim)
    dense = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sparse = SparseAdagrad(list(tables.values()), lr=0.1)

    def step(batch: Batch) -> float:
        loss = functional.binary_cross_entropy_with_logits(model.logits(batch.inputs), batch.labels)
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        dense.step()
        sparse.step()
        return float(loss.detach())

    sample = next(batches(work / "data" / "valid.parquet", engine)).columns
    publisher = Publisher(model, sample, work / "models", name=NAME, spec=SPEC)
    losses = [step(batch) for batch in batches(work / "data" / "train.parquet", engine)]
    print(f"{len(losses)} steps, loss {np.mean(losses[-20:]):.4f}, test AUC {judged(model, work, engine):.4f}")
    published = [publisher.publish("version")]
    for number, batch in enumerate(batches(work / "data" / "valid.parquet", engine), start=1):
        step(batch)
        publisher.offer(batch.columns)  # so that golden requests reach the rows that changed
        if number % delta_every_steps == 0:
            published.append(publisher.publish("delta"))
    print(f"newer rows: test AUC {judged(model, work, engine):.4f}")
    for folder in published:
        print(f"published {folder}")
    return published, model


def judged(model: GatedFields, work: Path, engine: FeatureEngine) -> float:
    """Returns the AUC on the test rows."""
    return auc(*score(model, work / "data" / "test.parquet", engine))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder for data and models")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--delta-every-steps", type=int, default=10)
    given = parser.parse_args()
    run(given.work, rows=given.rows, delta_every_steps=given.delta_every_steps)
