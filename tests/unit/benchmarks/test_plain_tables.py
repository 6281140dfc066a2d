"""The model on torch's layers that ours are compared with: it is the same model, and learns the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.plain_tables import train_plain
from trainer import load_trained, train
from trainer.config import parse_text

CONFIG = parse_text("""
model_name: plain
label: label
inputs:
  - {name: item, dtype: INT64}
  - {name: liked, dtype: INT64, kind: list, max_length: 5}
  - {name: price, dtype: FP32}
features:
  - {name: item, inputs: [item], output: ids, table: item}
  - {name: liked, inputs: [liked], output: ids, table: liked, pooling: mean}
  - {name: price, inputs: [price], output: dense}
tables:
  - {name: item, dim: 5, init: {scale: 0.1}}
  - {name: liked, dim: 5, init: {scale: 0.1}}
model: {type: deepfm, hidden: [8], dropout: 0.2}
optimizer:
  dense: {type: Adam, lr: 0.002, weight_decay: 1.0e-4}
  sparse: {type: adagrad, lr: 0.1, initial_accumulator: 0.1}
training: {batch_size: 32, epochs: 2, seed: 5, eval_every: 0}
""")


def clicks(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    items = rng.integers(-20, 20, rows)
    liked = [rng.integers(0, 30, n).tolist() for n in rng.integers(0, 5, rows)]
    return pa.table(
        {
            "item": items,
            "liked": pa.array(liked, pa.list_(pa.int64())),
            "price": rng.random(rows).astype(np.float32),
            "label": (items + rng.normal(0, 5, rows) > 0).astype(np.int64),
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("plain")
    pq.write_table(clicks(900, 1), place / "train.parquet")
    pq.write_table(clicks(300, 2), place / "test.parquet")
    return place


def test_the_same_model_from_the_same_rows_gives_the_same_scores(data: Path, tmp_path: Path) -> None:
    train(CONFIG, data / "train.parquet", output=tmp_path / "run", progress=False)
    ours = load_trained(tmp_path / "run").predict(data / "test.parquet")
    plain, ids = train_plain(CONFIG, data, same_rows=True)
    np.testing.assert_allclose(plain.scores, ours, atol=1e-4)
    assert ids["item"].tolist() == list(range(-20, 20))
    assert plain.scores.std() > 0.05  # it learned something that could differ


def test_rows_of_its_own_are_other_ones_and_learn_as_well(data: Path) -> None:
    own, _ = train_plain(CONFIG, data, same_rows=False)
    same, _ = train_plain(CONFIG, data, same_rows=True)
    assert np.abs(own.scores - same.scores).max() > 1e-3
    assert min(own.auc, same.auc) > 0.8
