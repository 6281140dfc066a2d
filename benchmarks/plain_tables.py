"""Trains a model of the zoo on torch's own embedding layers and optimizers: what our tables must rank as well as.

All else is ours: the feature engine, the order of the rows, the network, its first weights and its dropout. Rows are
numbered beforehand, over all ids that training and test have, as a torch user does who knows the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.traffic import Array
from storage.features.spec import FeatureSpec
from trainer.config import TrainConfig
from trainer.data import Batch, BatchMaker, DataRows, RowStream
from trainer.embedding import Embedded
from trainer.evaluate import Evaluation, evaluate
from trainer.models import RankingModel, build_model, build_tables
from trainer.optimizers import dense_optimizer
from trainer.row_sources import evaluation_rows, training_rows
from trainer.run import threads

_APART = 1_000_000


class PlainTables(nn.Module):
    """An `nn.EmbeddingBag` for each table, in the place of `FeatureEmbeddings`: all features are pooled.

    rows: first rows (R, D) by table. ids: the id of each row (R,) by table, ascending.
    """

    def __init__(self, spec: FeatureSpec, rows: Mapping[str, Tensor], ids: Mapping[str, Array]) -> None:
        super().__init__()
        self.ids = dict(ids)
        self.groups = tuple(spec.dense_groups)
        self._tables = {feature.name: feature.table for feature in spec.ids_features}
        self._dims = {name: rows[table].shape[1] for name, table in self._tables.items()}
        self.layers = nn.ModuleDict(
            {
                feature.name: nn.EmbeddingBag.from_pretrained(
                    rows[feature.table], freeze=False, mode=feature.pooling, sparse=True, include_last_offset=True
                )
                for feature in spec.ids_features
            }
        )

    def forward(self, inputs: Mapping[str, Tensor]) -> Embedded:
        pooled = []
        for name, layer in self.layers.items():
            numbers = np.searchsorted(self.ids[self._tables[name]], inputs[f"{name}.values"].numpy())
            pooled.append(layer(torch.from_numpy(numbers), inputs[f"{name}.offsets"]))
        return Embedded(pooled, self._dims, {})

    def dense(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the dense groups, (B, W) each."""
        return [inputs[group] for group in self.groups]


def train_plain(config: TrainConfig, data: Path, *, same_rows: bool) -> tuple[Evaluation, dict[str, Array]]:
    """Trains on data/train.parquet, and returns the scores of data/test.parquet and the ids of each table.

    Tables are dynamic, with a feature each, and the sparse optimizer is Adagrad. same_rows: begin with the rows that
    our tables begin with; otherwise torch draws its own from the same distribution.
    """
    rows = training_rows(config, data / "train.parquet", learns=True)
    config = config.with_column_types(rows.column_types)
    test = evaluation_rows(config, data / "test.parquet")
    maker = BatchMaker(config.spec, config.targets)
    training = config.training
    # Gradients come from torch itself; a choice keeps torch from warning that none was made.
    unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[]), threads(training.threads), unchecked:
        torch.manual_seed(training.seed)
        tables = build_tables(config)
        model = build_model(config, tables)
        dense = dense_optimizer(config.optimizer.dense, model)
        ids = known_ids(config.spec, maker, rows, test)
        # With the seed of the dense weights, the first rows would be the same draws as they are.
        drawn = torch.Generator().manual_seed(training.seed + _APART)
        first = {
            name: torch.from_numpy(tables[name].first_rows(each))
            if same_rows
            else _draw(config, name, len(each), drawn)
            for name, each in ids.items()
        }
        features: Any = PlainTables(config.spec, first, ids)
        model.features = features
        options: Any = config.optimizer.sparse
        sparse = torch.optim.Adagrad(
            features.parameters(),
            lr=options.lr,
            eps=options.eps,
            initial_accumulator_value=options.initial_accumulator,
        )
        stream = RowStream(rows, training.batch_size, shuffle_rows=training.shuffle_rows, seed=training.seed)
        for epoch in range(training.epochs):
            train_batches(model, map(maker.batch, stream.epoch(epoch)), dense, sparse)
        return evaluate(model, test, maker), ids


def train_batches(model: RankingModel, batches: Iterable[Batch], *optimizers: torch.optim.Optimizer) -> None:
    """Trains every batch once, as an ordinary loop does."""
    model.train()
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model.logits(batch.inputs), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()


def known_ids(spec: FeatureSpec, maker: BatchMaker, *parts: DataRows) -> dict[str, Array]:
    """Returns the ids (R,) ascending of each table in these rows."""
    found: dict[str, set[int]] = {feature.table: set() for feature in spec.ids_features}
    for rows in parts:
        for table in RowStream(rows, rows.rows).epoch(0):
            inputs = maker.inputs(table)
            for feature in spec.ids_features:
                found[feature.table].update(inputs[f"{feature.name}.values"].tolist())
    return {name: np.array(sorted(each), np.int64) for name, each in found.items()}


def _draw(config: TrainConfig, name: str, count: int, generator: torch.Generator) -> Tensor:
    table: Any = next(each for each in config.tables if each.name == name)
    if table.init.type != "uniform":
        raise ValueError(f"table {name!r}: init is {table.init.type}, expected uniform")
    return torch.empty(count, table.dim).uniform_(-table.init.scale, table.init.scale, generator=generator)
