"""Every optimizer of tables with tables of every kind: what is trained is what a server answers, also after a delta.

One model for each optimizer has a table of each kind. The server's scores are compared with those of the trained
module, and the rows that it serves with those of the training tables, so that a failure names optimizer and kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import open_delta
from storage.checkpoint import PublishedDelta
from tests.e2e.storm_clients import Asker, Operator
from tests.e2e.test_storm import set_options
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import Trained, load_trained, train, update
from trainer.config import parse_text
from trainer.embedding import EmbeddingTable, optimizer_classes

ROWS, TRAINED, NEWER = 300, 4000, 600
pytestmark = pytest.mark.long

DIM = 6
#: Of scores between the trainer and the server, both in float32.
SAME = 1e-6

TEXT = f"""
model_name: NAME
label: label
inputs:
  - {{name: user, dtype: INT64, side: user}}
  - {{name: item, dtype: INT64}}
  - {{name: clicked, dtype: INT64, kind: list, max_length: 8}}
features:
  - {{name: user, inputs: [user], output: ids, table: dynamic}}
  - {{name: fixed, inputs: [item], output: ids, table: static}}
  - {{name: latest, inputs: [clicked], output: ids, table: hashed, pooling: mean}}
  - {{name: item, inputs: [item], output: ids, table: divided}}
  - {{name: tags, inputs: [clicked], output: ids, table: many}}
  - {{name: again, inputs: [item], output: ids, table: classes}}
tables:
  - {{name: dynamic, dim: {DIM}, admit_after: 2, eviction: {{after_steps: 40}}}}
  - {{name: static, kind: static, dim: {DIM}, init: {{scale: 0.5}}, rows: 200}}
  - {{name: hashed, kind: hashed, dim: {DIM}, init: {{scale: 0.5}}, buckets: 60}}
  - {{name: divided, kind: quotient_remainder, dim: {DIM}, init: {{scale: 0.5}}, buckets: 20}}
  - {{name: many, kind: multi_hash, dim: {DIM}, hashes: 3, buckets: 40, combine: concat}}
  - {{name: classes, kind: classes, dims: {{hot: {DIM}, cold: 2}}, buckets: 30, admit_after: 20}}
model: {{type: dlrm, top: [8]}}
optimizer:
  dense: {{type: Adam, lr: 0.01}}
  sparse: {{type: TYPE, OPTIONS}}
  schedule: {{type: cosine, warmup_steps: 10, steps: 150}}
  clip_norm: 5.0
training: {{batch_size: 32, epochs: 1, threads: 1}}
"""
OPTIMIZERS = {
    "sgd": "lr: 5.0, weight_decay: 1.0e-4, row_clip: 0.5",
    "momentum": "lr: 1.0, momentum: 0.8",
    "adagrad": "lr: 0.3, initial_accumulator: 0.0001",
    "rowwise_adagrad": "lr: 0.3, initial_accumulator: 0.0001, weight_decay: 1.0e-3",
    "adagrad_decay": "lr: 0.3, initial_accumulator: 0.0001, decay_steps: 10",
    "adam": "lr: 0.03",
    "adamw": "lr: 0.03, weight_decay: 0.01",
    "rowwise_adam": "lr: 0.03",
    "lamb": "lr: 0.05",
    "ftrl": "lr: 1.0, initial_accumulator: 0.0001, beta: 0.001, l1: 1.0e-5, l2: 1.0e-5",
}
#: Of each kind, the tables of rows that it is made of.
KINDS = {
    "dynamic": ("dynamic",),
    "static": ("static",),
    "hashed": ("hashed",),
    "quotient_remainder": ("divided-quotient", "divided-remainder"),
    "multi_hash": ("many-0", "many-1", "many-2"),
    "classes": ("classes-hot", "classes-cold"),
}


@dataclass(frozen=True)
class Models:
    """The folder with the runs, their repository and the data."""

    place: Path

    @property
    def test(self) -> Path:
        return self.place / "test.parquet"


def clicks(rows: int, seed: int) -> pa.Table:
    """Users come and go, so that some of those of the training are evicted in the update."""
    rng = np.random.default_rng(seed)
    clicked = [rng.integers(-3, 300, n).tolist() for n in rng.integers(0, 6, rows)]
    user = rng.integers(0, 100, rows) + np.arange(rows) // 40 + 15 * seed
    item = (rng.beta(0.6, 2.0, rows) * 303).astype(np.int64) - 3
    logit = 2 * np.sin(user) + 2 * np.cos(item) + 0.3 * np.array([len(each) for each in clicked]) - 0.5
    label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    return pa.table({"user": user, "item": item, "clicked": pa.array(clicked, pa.list_(pa.int64())), "label": label})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    place = tmp_path_factory.mktemp("optimizers")
    for name, rows, seed in (("train", TRAINED, 1), ("newer", NEWER, 2), ("test", ROWS, 3)):
        pq.write_table(clicks(rows, seed), place / f"{name}.parquet")
    for name, options in OPTIMIZERS.items():
        config = parse_text(TEXT.replace("NAME", name).replace("TYPE", name).replace("OPTIONS", options))
        train(config, place / "train.parquet", output=place / name, repository=place / "models", progress=False)
        set_options(place / "models" / name, {"live_guard": "false"})
    return Models(place)


@pytest.fixture(scope="module")
def server(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("serving")
    with ServerProcess(models.place / "models", place / "store", place / "log") as running:
        yield running


def served_rows(asker: Asker, model: str, table: str, ids: np.ndarray) -> np.ndarray:
    """Returns what the server answers for ids of a table."""
    inputs = [{"name": "ids", "datatype": "INT64", "shape": [len(ids), 1], "data": ids.tolist()}]
    status, answer = asker.post(f"/v2/models/{model}.{table}/infer", {"inputs": inputs})
    assert status == 200, answer
    (rows,) = (each for each in answer["outputs"] if each["datatype"] == "FP32")
    return np.array(rows["data"], np.float32).reshape(len(ids), -1)


def check_rows(asker: Asker, model: str, tables: dict[str, EmbeddingTable]) -> None:
    """Asserts that all rows of the tables are served as they were trained, to the bit."""
    for kind, parts in KINDS.items():
        for part in parts:
            ids, rows, *_ = tables[part].export_rows()
            assert len(ids) > 0, f"{model}: the table {part} of the kind {kind} has no row"
            served = served_rows(asker, model, part, ids)
            wrong = ids[(served != rows).any(axis=1)]
            assert not len(wrong), f"{model}: rows of the table {part} of the kind {kind} differ: {wrong[:5]}"


def check_scores(server: ServerProcess, model: str, trained: Trained, test: Path) -> np.ndarray:
    """Asserts that the scores of every transport are the trained module's; returns those."""
    expected = trained.predict(test).reshape(-1)
    assert np.std(expected) > 0.01, "scores that are all alike compare nothing"
    for transport, scores in ask_all(server.url, server.grpc, model, requests_of(server.url, model, test, ROWS)):
        assert np.abs(scores.reshape(-1) - expected).max() <= SAME, f"{model}: {transport}"
    return expected


def updated(models: Models, name: str) -> PublishedDelta:
    """Trains a model on and publishes the delta."""
    report = update(
        models.place / name, models.place / "newer.parquet", repository=models.place / "models", progress=False
    )
    return open_delta(report.published[-1])


def test_the_optimizers_and_kinds_are_all_that_there_are() -> None:
    config = parse_text(TEXT.replace("NAME", "adam").replace("TYPE", "adam").replace("OPTIONS", "lr: 0.1"))
    assert set(OPTIMIZERS) == set(optimizer_classes())
    assert [table.kind for table in config.tables] == list(KINDS)
    assert [part.rows.name for part in config.row_tables] == [part for parts in KINDS.values() for part in parts]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_served_is_what_was_trained_before_and_after_a_delta(
    models: Models, server: ServerProcess, name: str
) -> None:
    trained = load_trained(models.place / name)
    with Operator(server.http_port, name) as operator:
        before = check_scores(server, name, trained, models.test)
        check_rows(operator, name, trained.tables)
        delta = updated(models, name)
        changed = {table.name for table in delta.tables if table.rows}
        for kind, parts in KINDS.items():
            assert set(parts) <= changed, f"{name}: the delta changes no row of the kind {kind}"
        assert len(delta.removed("dynamic")) > 10
        operator.wait_for(delta.snapshot)
        trained = load_trained(models.place / name)
        after = check_scores(server, name, trained, models.test)
        check_rows(operator, name, trained.tables)
    assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_that_differs_is_noticed(models: Models, server: ServerProcess, kind: str) -> None:
    """Changes one value of one row of the trained module by little, and finds that it is not what is served."""
    trained = load_trained(models.place / "adam")
    table = trained.tables[KINDS[kind][-1]]
    ids, _, _, counts, *_ = table.export_rows()
    ids = ids[[int(np.argmax(counts))]]
    rows, slots, count, stamp, tick = table.export_ids(ids)
    rows[0, 0] += 0.05
    table.erase(ids)
    table.restore(ids, rows, slots, count, stamp, tick)
    said = rf"of the kind {kind} differ: \[{ids[0]}\]"
    with Asker(server.http_port) as asker, pytest.raises(AssertionError, match=said):
        check_rows(asker, "adam", trained.tables)
    with pytest.raises(AssertionError, match="adam: HTTP JSON"):
        check_scores(server, "adam", trained, models.test)
