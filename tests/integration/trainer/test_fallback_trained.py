"""A chain of fallbacks from the configuration to a scored snapshot: a server always reads what training reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serving.scoring.scorer import Scorer
from storage.checkpoint.as_of import find_as_of
from storage.features import Column, FeatureSpec, column_from_arrow
from trainer import load_trained, train
from trainer.config import TrainConfig, parse_text
from trainer.trained import Trained

CONFIG = """
model_name: shop
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: INT64}
  - {name: author, dtype: INT64, missing: "null"}
  - {name: kind, dtype: BYTES, missing: "null"}
  - {name: seen, dtype: INT64, kind: list, max_length: 20}
  - {name: authors, dtype: INT64, kind: list, max_length: 20}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items, fallback: [author, kind, mean]}
  - {name: author, inputs: [author], output: ids, table: authors}
  - {name: kind, inputs: [kind], transforms: [{op: hash, seed: 1}], output: ids, table: kinds}
  - {name: seen, inputs: [seen], output: ids, table: items, pooling: mean, fallback: [authors]}
  - {name: authors, inputs: [authors], output: ids, table: authors, pooling: mean}
tables:
  - {name: users, dim: 8}
  - {name: items, dim: 8, admit_after: 4}
  - {name: authors, dim: 8, admit_after: 2}
  - {name: kinds, dim: 8}
model: {type: deepfm, hidden: [8]}
optimizer: {sparse: {lr: 0.2}, dense: {lr: 0.005}}
training: {batch_size: 128, epochs: 2, seed: 3, shuffle_rows: 600, checkpoint_every_steps: 5}
publish: {delta_every_steps: 8, cumulative_every: 3}
"""
ROWS = 2000


def clicks_of(seed: int, first_item: int, items: int, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    item = first_item + rng.zipf(1.6, rows) % items
    author = item // 5
    lengths = rng.integers(0, 4, rows)
    seen = [(first_item + rng.integers(0, items, n)).tolist() for n in lengths]
    likes = np.sin(author * 1.7) + np.cos(item * 0.3)
    return pa.table(
        {
            "user": rng.integers(0, 30, rows),
            "item": item,
            "author": pa.array([None if a % 11 == 0 else int(a) for a in author], pa.int64()),
            "kind": pa.array([["book", "film", "song"][a % 3] for a in author]),
            "seen": pa.array(seen, pa.list_(pa.int64())),
            "authors": pa.array([[i // 5 for i in bag] for bag in seen], pa.list_(pa.int64())),
            "clicked": (rng.random(rows) < 1 / (1 + np.exp(-2 * likes))).astype(np.float32),
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "clicks.parquet"
    pq.write_table(clicks_of(1, 0, 150), path, row_group_size=300)
    return path


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with known items, with new ones of known authors, and with new ones of new authors."""
    path = tmp_path_factory.mktemp("later") / "later.parquet"
    pq.write_table(clicks_of(2, 100, 200), path, row_group_size=300)
    return path


def config() -> TrainConfig:
    return parse_text(CONFIG)


def columns_of(path: Path, spec: FeatureSpec) -> tuple[dict[str, Column], int]:
    table = pq.read_table(path).combine_chunks()
    return {each.name: column_from_arrow(table[each.name].chunk(0), each) for each in spec.inputs}, table.num_rows


def served(repository: Path, snapshot: str, folder: Path, path: Path) -> np.ndarray:
    with Scorer(find_as_of(repository / "shop", snapshot), folder) as scorer:
        return scorer.score(*columns_of(path, scorer.spec))[0][:, 0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Trained, Path, Path]:
    folder = tmp_path_factory.mktemp("run")
    train(config(), data, output=folder / "out", repository=folder / "models", progress=False)
    return load_trained(folder / "out"), folder / "models", folder / "out"


def test_new_ids_score_in_every_snapshot_as_in_training(
    run: tuple[Trained, Path, Path], data: Path, later: Path, tmp_path: Path
) -> None:
    trained, repository, _ = run
    for path in (data, later):
        scores = served(repository, "latest", tmp_path / path.stem, path)
        np.testing.assert_allclose(scores, trained.predict(path), atol=2e-6)
