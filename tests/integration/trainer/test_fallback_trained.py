"""A chain of fallbacks from the configuration to a scored snapshot: a server always reads what training reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serving.scoring.scorer import Scorer
from storage.checkpoint.as_of import find_as_of
from storage.errors import ConfigError
from storage.features import Column, FeatureSpec, column_from_arrow
from storage.forgetting import Wanted
from tests.integration.trainer.test_training import at_step, content
from trainer import EmbeddingTable, load_trained, train
from trainer.checkpoint import checkpoints
from trainer.config import TrainConfig, parse_text
from trainer.embedding import means, refresh_means
from trainer.rewriting import check_published
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
publish: {delta_every_steps: 12, cumulative_every: 3}
"""
ROWS = 2000


def clicks_of(seed: int, first_item: int, items: int, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    item = first_item + (items * rng.random(rows) ** 3).astype(np.int64)
    author = item % 60
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
            "authors": pa.array([[i % 60 for i in bag] for bag in seen], pa.list_(pa.int64())),
            "clicked": (rng.random(rows) < 1 / (1 + np.exp(-2 * likes))).astype(np.float32),
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "clicks.parquet"
    pq.write_table(clicks_of(1, 0, 50), path, row_group_size=300)
    return path


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with known items, with new ones of known authors, and with new ones of new authors."""
    path = tmp_path_factory.mktemp("later") / "later.parquet"
    pq.write_table(clicks_of(2, 20, 100), path, row_group_size=300)
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


def test_new_ids_fall_back_and_rows_begin_as_their_chain(run: tuple[Trained, Path, Path], later: Path) -> None:
    trained, _, _ = run
    tables = trained.tables
    assert tables["items-mean"].size() == 1
    rows = pq.read_table(later).to_pydict()
    known, authors = (set(tables[name].export_rows()[0].tolist()) for name in ("items", "authors"))
    new = [place for place, item in enumerate(rows["item"]) if item not in known and rows["author"][place] in authors]
    assert len(new) > 20
    # Another new item of the same author, kind and user scores the same.
    place = new[0]
    one = {name: values[place] for name, values in rows.items()} | {"seen": [], "authors": []}
    same, other = pa.Table.from_pylist([one, {**one, "item": 10**6}]), pa.Table.from_pylist([{**one, "author": 10**6}])
    scores = trained.predict(same)
    assert scores[0] == scores[1]
    assert scores[0] != trained.predict(other)[0]


def test_the_mean_of_a_table_is_no_ids_row_that_can_be_forgotten(run: tuple[Trained, Path, Path]) -> None:
    with pytest.raises(ConfigError, match="table 'items-mean': its one row is the mean of the table 'items'"):
        check_published(run[1] / "shop", Wanted.of_ids({"items-mean": [0]}))


@pytest.mark.slow
def test_a_resumed_run_with_a_chain_is_the_same_to_the_bit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        raise OSError("the power went")

    def trained_to(folder: str, **options: Any) -> Path:
        repository = tmp_path / f"{folder}-models"
        train(config(), data, output=tmp_path / folder, repository=repository, progress=False, **options)
        return checkpoints(tmp_path / folder)[-1]

    whole = trained_to("whole")
    with monkeypatch.context() as patched:
        at_step(patched, 19, crash)
        with pytest.raises(OSError, match="power"):
            trained_to("cut")
    assert content(config(), trained_to("cut", resume=True)) == content(config(), whole)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[author, kind, mean]", "[autor, mean]", r"'autor' is no feature; did you mean 'author'\?"),
        ("[author, kind, mean]", "[mean, kind]", r"fallback\[0\]: `mean` has a row for every id, so it comes last"),
        (
            "{name: authors, dim: 8, admit",
            "{name: authors, dim: 4, admit",
            r"rows have 4 values, those of 'items' have 8",
        ),
        ("name: kinds, dim: 8", "name: kinds, kind: multi_hash, buckets: 9, dim: 8", "which is made of several"),
        ("fallback: [author, kind", "falback: [author, kind", "unknown key; did you mean 'fallback'"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_by_its_place(old: str, new: str, said: str) -> None:
    assert old in CONFIG
    with pytest.raises(ConfigError, match=said):
        parse_text(CONFIG.replace(old, new))


def test_a_delta_leaves_the_mean_of_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(means, "ROWS_AT_MOST", 10)
    items, mean = EmbeddingTable("items", 4, optimizer="sgd"), EmbeddingTable("items-mean", 4, optimizer="sgd")
    items.lookup(np.arange(20), train=True)
    refresh_means({"items-mean": mean}, {"items-mean": items}, all_rows=False)
    assert mean.size() == 0
    refresh_means({"items-mean": mean}, {"items-mean": items}, all_rows=True)
    np.testing.assert_allclose(mean.export_rows()[1][0], items.export_rows()[1].mean(axis=0), rtol=1e-5)
    items.erase(np.arange(20))
    refresh_means({"items-mean": mean}, {"items-mean": items}, all_rows=True)
    assert mean.size() == 0
