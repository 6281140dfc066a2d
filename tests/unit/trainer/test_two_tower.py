"""Two towers: the loss against a plain one, how often items come, where an item is among all, and wrong towers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from emberline.cli.export_items import command as export_command
from storage.errors import ConfigError, InvalidInput
from tests.support.films import made_up_films
from trainer import export_item_embeddings, load_config, load_trained, train
from trainer.config import TrainConfig
from trainer.config_errors import parse_config
from trainer.data import BatchMaker, DataRows
from trainer.evaluation.retrieval import retrieval_metric, retrieval_places
from trainer.models import TwoTower, build_model, build_tables
from trainer.row_sources import training_rows

CONFIG = Path(__file__).parents[3] / "trainer" / "configs" / "movielens_two_tower.yaml"


def changed(**model: object) -> TrainConfig:
    content = load_config(CONFIG).model_dump(mode="json")
    content["model"] |= model
    content["training"] |= {"batch_size": 128, "epochs": 1, "threads": 1}
    return parse_config(TrainConfig, content)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("films") / "train.parquet"
    pq.write_table(made_up_films(1500), path)
    return path


def built(config: TrainConfig) -> TwoTower:
    torch.manual_seed(0)
    model = build_model(config, build_tables(config))
    assert isinstance(model, TwoTower)
    return model


def first_rows(config: TrainConfig, films: Path) -> DataRows:
    return training_rows(config, films, learns=True).range(0, 100)


def test_the_loss_is_that_of_each_liked_film_among_the_films_of_the_batch(films: Path) -> None:
    config = changed(correct_frequency=False)
    model = built(config)
    batch = BatchMaker(config.spec, config.targets).batch(first_rows(config, films).read())
    for _ in range(3):
        model.embed(batch.inputs)  # by now every id has its row
    loss, logits = model.learn(batch, config.targets)
    user, item = model.embed(batch.inputs)
    np.testing.assert_allclose(user.norm(dim=1).detach(), 1.0, rtol=1e-5)
    ids = model.item_ids(batch.inputs)
    plain = []
    for row in np.flatnonzero(batch.labels.numpy().ravel()).tolist():
        others = [place for place in range(100) if place == row or ids[place] != ids[row]]
        scores = (user[row] @ item[others].T) / 0.1
        plain.append(functional.cross_entropy(scores, torch.tensor(others.index(row))).item())
    assert loss.item() == pytest.approx(np.mean(plain), rel=1e-5)
    assert torch.equal(logits, (user * item).sum(dim=1, keepdim=True))
    assert len(set(ids.tolist())) < 100, "no film is there twice"


def test_frequent_items_are_found_to_come_often() -> None:
    model = built(changed())
    rng = np.random.default_rng(0)
    for _ in range(400):
        ids = np.array([1, *(each for each, share in ((2, 0.5), (3, 0.1)) if rng.random() < share)], np.int64)
        model._seen(ids)
    always, half, tenth = model._seen(np.array([1, 2, 3], np.int64))
    assert always == pytest.approx(1.0)
    assert 0.3 < half < 0.8
    assert 0.05 < tenth < 0.2


def test_places_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 12, 60)
    items, users = rng.normal(size=(12, 4))[ids], rng.normal(size=(60, 4))
    labels = rng.integers(0, 2, 60)
    expected = []
    for row in np.flatnonzero(labels):
        scores = {item: float(users[row] @ items[ids == item][0]) for item in set(ids.tolist())}
        expected.append(sorted(scores, key=lambda item: -scores[item]).index(int(ids[row])) + 1)
    places = retrieval_places(labels, users, items, ids)
    assert places.tolist() == expected
    assert retrieval_metric("recall@3", places) == np.mean(np.array(expected) <= 3)
    assert retrieval_metric("mrr", places) == pytest.approx(np.mean(1 / np.array(expected)))
    alike = retrieval_places(np.ones(12), np.ones((12, 2)), np.ones((12, 2)), np.arange(12))
    assert set(alike) == {6.5}, "a model that says the same of all items ranks like chance"


def test_item_embeddings_are_written_once_for_each_item(films: Path, tmp_path: Path) -> None:
    config = changed()
    report = train(config, films, output=tmp_path / "run", valid=0.2, progress=False)
    assert set(report.metrics["score"]) == {"recall@10", "recall@50", "mrr"}
    trained = load_trained(tmp_path / "run")
    count = export_item_embeddings(trained, films, tmp_path / "items.parquet")
    table = pq.read_table(tmp_path / "items.parquet")
    items = pq.read_table(films)["item"].to_numpy()
    assert sorted(table["id"].to_pylist()) == sorted(set(items.tolist()))
    assert count == table.num_rows
    outputs = trained.outputs(films)
    first = np.sort(np.unique(items, return_index=True)[1])  # a film's other features differ between these rows
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), outputs["item_embedding"][first], atol=1e-6)
    found = (outputs["user_embedding"] * outputs["item_embedding"]).sum(axis=1)
    np.testing.assert_allclose(found, outputs["score"], atol=1e-6)

    catalogue = pq.read_table(films).select(["item", "genres", "release_year"])
    titles = pa.array([f"film {item}" for item in catalogue["item"].to_pylist()])
    pq.write_table(catalogue.append_column("title", titles), tmp_path / "catalogue.parquet")
    given = [str(tmp_path / "run"), "--data", str(tmp_path / "catalogue.parquet"), "--keep", "title"]
    done = CliRunner().invoke(export_command, [*given, str(tmp_path / "vectors.parquet")])
    assert done.exit_code == 0, done.output
    vectors = pq.read_table(tmp_path / "vectors.parquet")
    assert vectors.select(["id", "embedding"]).equals(table)
    assert vectors["title"].to_pylist() == [f"film {item}" for item in vectors["id"].to_pylist()]
    without = catalogue.set_column(0, "item", pa.array([None, *catalogue["item"].to_pylist()[1:]], pa.int64()))
    assert export_item_embeddings(trained, without.slice(0, 1), tmp_path / "none.parquet") == 0
    with pytest.raises(InvalidInput, match="keep: 'id' is a column of the result"):
        export_item_embeddings(trained, catalogue, tmp_path / "none.parquet", keep=["id"])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"item": ["itm", "genres", "release_year"]}, "item names 'itm'.*did you mean 'item'"),
        ({"item": ["item", "genres"]}, "'release_year' is in neither tower"),
        ({"item": ["item", "genres", "release_year", "age"]}, "'age' is given more than once"),
        ({"item_id": "past"}, "item_id is 'past', expected a pooled feature"),
    ],
)
def test_features_in_no_tower_or_in_both_are_refused(model: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        built(changed(**model))


def test_the_loss_and_the_model_belong_together() -> None:
    content = load_config(CONFIG).model_dump(mode="json")
    with pytest.raises(ConfigError, match="two_tower learns one task; expected one of the loss in_batch_softmax"):
        parse_config(TrainConfig, {**content, "tasks": [{"label": "label"}]})
    with pytest.raises(ConfigError, match="in_batch_softmax is the loss of the model two_tower, got dcnv2"):
        parse_config(TrainConfig, {**content, "model": {"type": "dcnv2"}})
    task = {"name": "user_embedding", "label": "label", "loss": "in_batch_softmax"}
    with pytest.raises(ConfigError, match="'user_embedding' is another output"):
        parse_config(TrainConfig, {**content, "tasks": [task]})
