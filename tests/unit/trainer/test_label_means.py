"""Regressions begin at the mean label; nothing else does, nor a run that starts from another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from trainer import train
from trainer.config import TrainConfig, parse_text
from trainer.data import BatchMaker, DataRows, Wanted
from trainer.data.negative_sampling import sampled_negatives
from trainer.label_means import begin_at_means
from trainer.models import MODELS, RankingModel, build_model, build_tables
from trainer.row_sources import training_rows

TEXT = """
model_name: m
tasks:
  - {name: kind, label: kind, loss: softmax_cross_entropy, classes: 3}
  - {name: amount, label: amount, loss: mean_squared_error}
  - {name: bought, label: bought}
inputs: [{name: a, dtype: INT64}]
features: [{name: a, inputs: [a], output: ids, table: t}]
tables: [{name: t, dim: 4}]
model: {type: MODEL}
training: {batch_size: 100, epochs: 1}
"""
ONE = TEXT.replace("  - {name: kind, label: kind, loss: softmax_cross_entropy, classes: 3}\n", "").replace(
    "  - {name: bought, label: bought}\n", ""
)


def rows(amount: float) -> pa.Table:
    return pa.table(
        {"a": np.arange(400) % 7, "kind": [0, 2] * 200, "bought": [1, 0] * 200, "amount": [amount, amount + 20.0] * 200}
    )


def outputs(model: RankingModel) -> torch.Tensor:
    return torch.cat([bias.detach().clone() for bias in model.output_biases()])


@pytest.mark.parametrize("kind", ["deepfm", "wide_deep", "dlrm", "dcnv2", "mmoe", "ple"])
def test_only_the_head_of_the_regression_begins_at_the_mean(kind: str) -> None:
    config = parse_text(TEXT.replace("MODEL", kind))
    model = build_model(config, build_tables(config))
    before = outputs(model)
    assert before.shape == (5,)
    begin_at_means(model, [rows(500.0)], config.targets)
    after = outputs(model)
    assert float(after[3]) == 510.0
    assert torch.equal(torch.cat([before[:3], before[4:]]), torch.cat([after[:3], after[4:]]))


def test_the_mean_is_read_of_the_labels_alone(tmp_path: Path) -> None:
    config = parse_text(TEXT.replace("MODEL", "deepfm"))
    pq.write_table(rows(500.0), tmp_path / "a.parquet", row_group_size=150)
    data = training_rows(config, tmp_path)
    labels = data.only({*config.targets.numbers, *config.targets.texts})
    assert sorted(labels.schema.names) == ["amount", "bought", "kind"]
    assert labels.read().equals(data.read().select(labels.schema.names))
    assert [sorted(block.own.names) for block in labels.blocks] == [["amount", "bought", "kind"]] * 3
    sampled = sampled_negatives(data, config.targets.tasks[2], 0.5, 1)
    assert sampled.only({"amount"}).read().equals(sampled.read().select(["amount"]))


def test_a_label_may_be_the_value_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "amount=510").mkdir()
    pq.write_table(rows(500.0).drop_columns("amount"), tmp_path / "amount=510" / "a.parquet")
    data = training_rows(parse_text(TEXT.replace("MODEL", "deepfm")), tmp_path)
    assert data.only({"amount"}).read().column("amount").to_pylist() == [510] * 400


@pytest.mark.parametrize("kind", sorted({*MODELS} - {"two_tower"}))  # its output is a product without a bias
def test_the_values_that_a_model_names_are_added_to_its_heads(
    kind: str, clicks: Path, config_of: Callable[..., TrainConfig]
) -> None:
    config = config_of(kind)
    model = build_model(config, build_tables(config)).eval()
    data = DataRows.open(clicks, Wanted(config.inputs, config.targets.numbers)).range(0, 9).read()
    inputs = BatchMaker(config.spec, config.targets).inputs(data)
    before = model.logits(inputs)
    with torch.no_grad():
        for bias in model.output_biases():
            bias += 3.0
    torch.testing.assert_close(model.logits(inputs), before + 3.0)


def test_a_new_run_begins_there_and_one_from_another_run_does_not(tmp_path: Path) -> None:
    pq.write_table(rows(500.0), tmp_path / "rows.parquet")
    pq.write_table(rows(100_000.0), tmp_path / "far.parquet")
    config = parse_text(ONE.replace("MODEL", "wide_deep"))
    first = train(config, tmp_path / "rows.parquet", output=tmp_path / "first", progress=False)
    assert first.epochs[0].loss == pytest.approx(100.0, rel=0.1)  # that of the mean
    later = train(
        config, tmp_path / "far.parquet", output=tmp_path / "later", start_from=tmp_path / "first", progress=False
    )
    assert later.epochs[0].loss == pytest.approx(99_500.0**2, rel=0.01)
