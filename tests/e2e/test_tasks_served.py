"""Tasks of every kind, alone and together: each output that is served is the trained module's, also after a delta."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import open_delta
from tests.e2e.storm_clients import Operator
from tests.e2e.test_storm import set_options
from tests.support.films import made_up_films
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_every_output, requests_of
from trainer import load_config, load_trained, train, update
from trainer.config import TrainConfig, parse_text

ROWS, TRAINED, NEWER = 300, 6000, 500
pytestmark = pytest.mark.long

CLASSES = 4
#: Of an output between the trainer and the server, both in float32, by the size of the output.
SAME = 2e-6

TASKS = f"""
tasks:
  - {{name: like, label: liked, group: user, metrics: [auc, gauc, log_loss, calibration]}}
  - {{name: stars, label: stars, loss: mean_squared_error, weight: 0.3}}
  - {{name: kind, label: kind, loss: softmax_cross_entropy, classes: {CLASSES}}}
  - {{name: order, label: stars, loss: listwise, group: user, weight: 0.5}}
sample_weight: importance
"""
ORDER = "tasks: [{name: order, label: stars, loss: pairwise, group: user}]"
#: One task, whose probability is corrected.
SAMPLED = "tasks: [{name: like, label: liked}]\ndata: {negative_sampling: 0.3}"
#: A task that happens where another one does, learned over the entire space.
ENTIRE = "tasks: [{name: like, label: liked}, {name: top, label: {column: stars, equals: 5}, given: like}]"
TEXT = """
model_name: NAME
LEARNED
inputs:
  - {name: user, dtype: INT64, side: user}
  - {name: item, dtype: INT64}
  - {name: clicked, dtype: INT64, kind: list, max_length: 8}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items}
  - {name: clicked, inputs: [clicked], output: ids, table: items, pooling: POOLING}
  - {name: price, inputs: [price], output: dense}
tables:
  - {name: users, dim: 8}
  - {name: items, dim: 8}
model: MODEL
optimizer: {dense: {lr: 0.01}, sparse: {lr: 0.2, initial_accumulator: 0.0001}}
training: {batch_size: 64, epochs: 3, threads: 1}
"""
MODELS = {
    "deepfm": "{type: deepfm, hidden: [16]}",
    "dlrm": "{type: dlrm, bottom: [8], top: [16]}",
    "wide_deep": "{type: wide_deep, hidden: [16]}",
    "dcnv2": "{type: dcnv2, hidden: [16]}",
    "mmoe": "{type: mmoe, experts: 3, expert: [16], tower: [8]}",
    "ple": "{type: ple, shared_experts: 1, task_experts: 1, expert: [16], tower: [8]}",
    "din": "{type: din, target: item, sequence: clicked, hidden: [16], attention: [8]}",
}
#: Configurations of several tasks over MovieLens' columns.
FILMS = {
    path.stem: path
    for path in sorted((Path(__file__).parents[2] / "trainer" / "configs").glob("movielens*.yaml"))
    if load_config(path).tasks
}
LEARNED = {**dict.fromkeys(MODELS, TASKS), "order": ORDER, "sampled": SAMPLED, "entire": ENTIRE}
OUTPUTS = {name: (["order"] if name == "order" else ["like", "stars", "kind", "order"]) for name in LEARNED}
OUTPUTS["sampled"] = ["like"]
OUTPUTS["entire"] = ["like", "top", "top_given_like"]
OUTPUTS |= {name: ["like", "stars"] for name in FILMS}
OUTPUTS["movielens_two_tower"] = ["score", "user_embedding", "item_embedding"]


def text_of(name: str) -> str:
    pooling = "none, length: 5" if name == "din" else "mean"
    model = MODELS.get(name, MODELS["dlrm"])
    return (
        TEXT.replace("NAME", name).replace("LEARNED", LEARNED[name]).replace("POOLING", pooling).replace("MODEL", model)
    )


def config_of(name: str) -> TrainConfig:
    return load_config(FILMS[name]) if name in FILMS else parse_text(text_of(name))


def data_of(place: Path, name: str) -> Path:
    """Returns the folder with the data of a model: train, newer and test."""
    return place / ("films" if name in FILMS else "ratings")


def ratings(rows: int, seed: int) -> pa.Table:
    """Makes ratings of hidden tastes, sorted by user, so that the rows of a batch make groups."""
    rng = np.random.default_rng(seed)
    tastes = np.random.default_rng(0).normal(size=(200, 3))
    user, item = np.sort(rng.integers(0, 60, rows)), rng.integers(60, 200, rows)
    taste = (tastes[user] * tastes[item]).sum(axis=1)
    stars = np.clip(np.round(taste + 3 + 0.3 * rng.normal(size=rows)), 1, 5)
    clicked = [rng.integers(60, 200, n).tolist() for n in rng.integers(0, 6, rows)]
    return pa.table(
        {
            "user": user,
            "item": item,
            "clicked": pa.array(clicked, pa.list_(pa.int64())),
            "price": rng.random(rows, np.float32),
            "liked": stars >= 4,
            "stars": stars,
            "kind": (np.argmax(tastes[item], axis=1) + (taste > 1)).astype(np.int64),
            "importance": rng.integers(1, 4, rows) / 2.0,
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the data and trains every model on it."""
    place = tmp_path_factory.mktemp("tasks")
    for folder, made in (("ratings", ratings), ("films", made_up_films)):
        (place / folder).mkdir()
        for name, rows, seed in (("train", TRAINED, 1), ("newer", NEWER, 2), ("test", ROWS, 3)):
            pq.write_table(made(rows, seed), place / folder / f"{name}.parquet")
    for name in OUTPUTS:
        train(
            config_of(name),
            data_of(place, name) / "train.parquet",
            output=place / name,
            repository=place / "models",
            valid=data_of(place, name) / "test.parquet",
            progress=False,
        )
        set_options(place / "models" / name, {"live_guard": "false"})
    return place


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("serving")
    with ServerProcess(place / "models", folder / "store", folder / "log") as running:
        yield running


def check(place: Path, server: ServerProcess, name: str) -> dict[str, np.ndarray]:
    """Asserts that every output of every transport is the trained module's; returns those."""
    test = data_of(place, name) / "test.parquet"
    expected = load_trained(place / name).outputs(test)
    assert list(expected) == OUTPUTS[name]
    requests = requests_of(server.url, name, test, ROWS)
    for transport, served in ask_every_output(server.url, server.grpc, name, requests, OUTPUTS[name]):
        for output, values in expected.items():
            assert np.std(values) > 0.002, "outputs that are all alike compare nothing"
            width = CLASSES if output == "kind" else values.size // ROWS
            assert served[output].shape == (ROWS, width), (transport, output)
            allowed = SAME * max(1.0, float(np.abs(values).max()))
            assert np.abs(served[output].reshape(values.shape) - values).max() <= allowed, (transport, output)
    return expected


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_output_is_served_as_trained_before_and_after_a_delta(
    place: Path, server: ServerProcess, name: str
) -> None:
    before = check(place, server, name)
    newer = data_of(place, name) / "newer.parquet"
    report = update(place / name, newer, repository=place / "models", progress=False)
    delta = open_delta(report.published[-1])
    with Operator(server.http_port, name) as operator:
        operator.wait_for(delta.snapshot)
    after = check(place, server, name)
    for output in OUTPUTS[name]:
        assert np.abs(after[output] - before[output]).max() > 10 * SAME, output


@pytest.mark.parametrize("name", ["dlrm", "mmoe", "ple"])
def test_several_tasks_are_learned(place: Path, name: str) -> None:
    evaluation = load_trained(place / name).evaluate(data_of(place, name) / "test.parquet")
    metrics = evaluation.metrics
    assert metrics["like"].keys() == {"auc", "gauc", "log_loss", "calibration"}
    assert (metrics["like"]["auc"] or 0) > 0.7
    spread = float(np.std(evaluation.tasks["stars"].labels))
    assert (metrics["stars"]["rmse"] or spread) < 0.9 * spread
    most_frequent = np.bincount(evaluation.tasks["kind"].labels.astype(int)).max() / ROWS
    assert (metrics["kind"]["accuracy"] or 0) > most_frequent + 0.05
    assert (metrics["order"]["ndcg@10"] or 0) > 0.9
