"""The loop of own_model.py in several processes, which have a part of the tables each.

    torchrun --standalone --nproc-per-node 2 -m examples.own_ranks build/own-ranks

It takes the same steps as one process does: `python -m examples.own_ranks build/own-alone`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import torch
from torch.nn import functional

from examples.own_model import BATCH_ROWS, LABEL, NAME, SPEC, GatedFields
from storage.data import DataRows
from storage.features import FeatureEngine, column_from_arrow
from trainer import EmbeddingTable, SparseAdagrad, join_ranks, sum_gradients
from trainer.data import RowStream, Split, to_inputs
from trainer.datasets import write_synthetic
from trainer.publishing import Publisher


def run(work: Path, *, rows: int) -> Path:
    """Trains one epoch as a rank, and returns the version that is published."""
    engine, dim = FeatureEngine(SPEC), 8
    with join_ranks() as ranks:
        with ranks.first_before_others():
            if ranks.is_first:
                write_synthetic(work / "data", rows=rows, ids=max(rows // 4, 1000))
        torch.manual_seed(1)  # the same weights at each rank
        tables = {name: EmbeddingTable(name, dim, admit_after=2, ranks=ranks) for name in SPEC.table_names}
        model = GatedFields(tables, dim)
        dense = torch.optim.AdamW(model.parameters(), lr=2e-3)
        sparse = SparseAdagrad(list(tables.values()), lr=0.1)

        opened = DataRows.open(work / "data" / "train.parquet", None)
        # Each rank takes its part of every batch.
        stream = RowStream(opened, BATCH_ROWS, shuffle_rows=65_536, split=Split(ranks.rank, ranks.size))
        for number, table in enumerate(stream.epoch(0)):
            inputs, labels = _features(engine, table)
            losses = functional.binary_cross_entropy_with_logits(model.logits(inputs), labels, reduction="sum")
            dense.zero_grad()
            sparse.zero_grad()
            # The mean over the rows of all ranks; gradients of rows of tables are summed on their way back.
            (losses / stream.rows_of(number)).backward()  # type: ignore[no-untyped-call]
            sum_gradients(model.parameters(), ranks)
            dense.step()
            sparse.step()

        sample = {entry.name: column_from_arrow(_first(work).column(entry.source), entry) for entry in SPEC.inputs}
        folder = Publisher(model, sample, work / "models", name=NAME, spec=SPEC).publish("version")
        if ranks.is_first:
            print(f"published {folder}")
    return folder


def _features(engine: FeatureEngine, table: pa.Table) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    columns = {entry.name: column_from_arrow(table.column(entry.source), entry) for entry in SPEC.inputs}
    labels = torch.tensor(table.column(LABEL).to_numpy(), dtype=torch.float32).unsqueeze(1)
    return to_inputs(engine.run(columns, table.num_rows)), labels


def _first(work: Path) -> pa.Table:
    return DataRows.open(work / "data" / "valid.parquet", None).range(0, BATCH_ROWS).read()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder for data and models")
    parser.add_argument("--rows", type=int, default=400_000)
    given = parser.parse_args()
    run(given.work, rows=given.rows)
