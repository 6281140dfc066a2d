"""Rows of every type and bags with weights, end to end: trained, published, served, changed by a delta, rolled back.

What is asked of the server is computed a second time in float64 from the published files alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import open_delta, open_version
from storage.tiers.planning.budget import row_cost
from tests.e2e.conftest import rows_of
from tests.e2e.storm_clients import Asker, Operator
from tests.e2e.test_storm import set_options
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import load_trained, train, update
from trainer.config import parse_text

pytestmark = pytest.mark.long

ROWS = 1000
TOLERANCE = 5e-6

CONFIG = """
model_name: plain
label: label
inputs:
  - {name: user, dtype: INT64, side: user}
  - {name: item, dtype: INT64}
  - {name: clicked, dtype: INT64, kind: list, max_length: 8}
  - {name: seconds, dtype: FP32, kind: list, max_length: 8}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: user}
  - {name: item, inputs: [item], transforms: [{op: hash}], output: ids, table: item}
  - {name: latest, inputs: [clicked], transforms: [{op: hash}, {op: truncate, length: 3, keep: last}], output: ids,
     table: item, pooling: weighted, weights: seconds}
  - {name: tags, inputs: [clicked], output: ids, table: tag, pooling: mean}
  - {name: price, inputs: [price], transforms: [{op: log}], output: dense}
tables:
  - {name: user, dim: 6}
  - {name: item, dim: 6}
  - {name: tag, dim: 6}
model: {type: dlrm, bottom: [8], top: [8]}
optimizer:
  dense: {type: Adam, lr: 0.01}
  sparse: {type: adagrad, lr: 0.3, initial_accumulator: 0.0001}
training: {batch_size: 256, epochs: 2}
"""
# By model: row types, and whether a tenth of its rows fits into DRAM.
MODELS: dict[str, tuple[dict[str, str], bool]] = {
    "plain": ({}, False),
    "half": ({"default": "fp16"}, True),
    "brain": ({"default": "bf16"}, False),
    "bytes": ({"default": "int8"}, True),
    "mixed": ({"default": "bf16", "item": "int8", "tag": "fp32"}, True),
}


@dataclass(frozen=True)
class Models:
    repository: Path
    versions: dict[str, Path]
    runs: dict[str, Path]
    test: Path
    newer: Path


def clicks(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, rows)
    clicked = [rng.integers(0, 300, n).tolist() for n in lengths]
    seconds = [rng.exponential(1.0, n).astype(np.float32).tolist() for n in lengths]
    user, item = rng.integers(0, 500, rows), rng.integers(0, 300, rows)
    logit = np.sin(user) + np.cos(item) + np.array([sum(s) for s in seconds]) * 0.3 - 0.5
    return pa.table(
        {
            "user": user,
            "item": item,
            "clicked": pa.array(clicked, pa.list_(pa.int64())),
            "seconds": pa.array(seconds, pa.list_(pa.float32())),
            "price": rng.exponential(5.0, rows).astype(np.float32),
            "label": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64),
        }
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Models:
    place = tmp_path_factory.mktemp("row_types")
    for name, rows, seed in (("train", 20_000, 1), ("newer", 400, 2), ("test", ROWS, 3)):
        pq.write_table(clicks(rows, seed), place / f"{name}.parquet")
    config = parse_text(CONFIG)
    train(config, place / "train.parquet", output=place / "plain", progress=False)
    versions: dict[str, Path] = {}
    runs: dict[str, Path] = {}
    for name, (row_types, _) in MODELS.items():
        runs[name] = place / name
        if name != "plain":
            shutil.copytree(place / "plain", runs[name])
        content = json.loads((runs[name] / "config.json").read_text())
        content["model_name"] = name
        content["publish"]["row_types"] = row_types
        (runs[name] / "config.json").write_text(json.dumps(content))
    for name, (_, small) in MODELS.items():
        versions[name] = load_trained(runs[name]).publish(place / "models")
        options = {"live_guard": "false"}
        if small:
            tables = open_version(versions[name]).tables
            options["dram_bytes"] = str(sum(row_cost(table) * table.rows for table in tables) // 10)
        set_options(place / "models" / name, options)
    return Models(place / "models", versions, runs, place / "test.parquet", place / "newer.parquet")


@pytest.fixture(scope="module")
def server(published: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("serving")
    with ServerProcess(published.repository, place / "store", place / "log") as running:
        yield running


def served_scores(server: ServerProcess, model: str, data: Path) -> dict[str, np.ndarray]:
    requests = requests_of(server.url, model, data, ROWS)
    return dict(ask_all(server.url, server.grpc, model, requests))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_row_type_is_served_changed_and_rolled_back(published: Models, server: ServerProcess, name: str) -> None:
    version = open_version(published.versions[name])
    asked, _ = MODELS[name]
    assert {t.name: t.row_type for t in version.tables} == {
        t.name: asked.get(t.name, asked.get("default", "fp32")) for t in version.tables
    }
    rows = rows_of(published.test, ROWS)
    reference = ReferenceScorer(published.versions[name])
    before = reference.score(rows)
    assert np.std(before) > 0.01, "scores that are all alike compare nothing"
    first = served_scores(server, name, published.test)
    for transport, scores in first.items():
        assert np.abs(scores - before).max() <= TOLERANCE, transport
    trained = load_trained(published.runs[name]).predict(published.test)
    if not asked:
        assert np.abs(trained - before).max() <= TOLERANCE
    else:
        assert np.abs(trained - before).max() > TOLERANCE, "nothing was rounded: this compares nothing"

    folder = update(published.runs[name], published.newer, repository=published.repository, progress=False).published[
        -1
    ]
    delta = open_delta(folder)
    assert {t.name: t.row_type for t in delta.tables} == {t.name: t.row_type for t in version.tables}
    assert sum(table.rows for table in delta.tables) > 100
    reference.apply(folder)
    after = reference.score(rows)
    assert np.abs(after - before).max() > 1e-3
    with Operator(server.http_port, name) as operator:
        operator.wait_for(delta.snapshot)
        for transport, scores in served_scores(server, name, published.test).items():
            assert np.abs(scores - after).max() <= TOLERANCE, transport
        operator.command("rollback", {"to": version.snapshot})
        assert operator.served() == version.snapshot
        for transport, scores in served_scores(server, name, published.test).items():
            np.testing.assert_array_equal(scores, first[transport], err_msg=transport)
        operator.command("resume")
        operator.wait_for(delta.snapshot)
    for transport, scores in served_scores(server, name, published.test).items():
        assert np.abs(scores - after).max() <= TOLERANCE, transport


def test_a_version_in_another_row_type_follows(published: Models, server: ServerProcess) -> None:
    folder = load_trained(published.runs["half"]).publish(published.repository, row_types={"default": "int8"})
    version = open_version(folder)
    assert {table.row_type for table in version.tables} == {"int8"}
    assert version.manifest.equals is None
    with Operator(server.http_port, "half") as operator:
        operator.wait_for(version.snapshot)
    expected = ReferenceScorer(folder).score(rows_of(published.test, ROWS))
    for transport, scores in served_scores(server, "half", published.test).items():
        assert np.abs(scores - expected).max() <= TOLERANCE, transport


def body(**changes: Any) -> dict[str, Any]:
    """Returns a request of two rows.

    changes: shape and data of an input, or None to leave the input out.
    """
    given: dict[str, Any] = {
        "user": ("INT64", [1, 1], [7]),
        "item": ("INT64", [2, 1], [3, 4]),
        "price": ("FP32", [2, 1], [1.0, 2.0]),
        "clicked": ("INT64", [2, 2], [1, 2, 3, 0]),
        "clicked.lengths": ("INT64", [2, 1], [2, 1]),
        "seconds": ("FP32", [2, 2], [0.5, 1.5, 2.0, 0.0]),
        "seconds.lengths": ("INT64", [2, 1], [2, 1]),
    }
    given |= {name.replace("__", "."): value for name, value in changes.items()}
    return {
        "inputs": [
            {"name": name, "datatype": value[0], "shape": value[1], "data": value[2]}
            for name, value in given.items()
            if value is not None
        ]
    }


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another number of weights": (
        {"seconds__lengths": ("INT64", [2, 1], [1, 1])},
        "input 'seconds', row 0: the number of weights is 1, that of values in 'clicked' is 2",
    ),
    "weights of an empty row": (
        {"clicked__lengths": ("INT64", [2, 1], [2, 0])},
        "input 'seconds', row 1: the number of weights is 1, that of values in 'clicked' is 0",
    ),
    "no weights": (
        {"seconds": None, "seconds__lengths": None},
        "input 'seconds' (FP32) is missing",
    ),
    "weights without ids": (
        {"clicked": None, "clicked__lengths": None},
        "input 'clicked' (INT64) is missing",
    ),
    "a null weight": (
        {"seconds": ("FP32", [2, 2], [0.5, None, 2.0, 0.0])},
        "input 'seconds', row 0: a weight is null or NaN",
    ),
    "weights of another batch": (
        {"seconds": ("FP32", [1, 2], [0.5, 1.5]), "seconds__lengths": ("INT64", [1, 1], [2])},
        "input 'seconds' has a batch of 1",
    ),
    "integers of strings": (
        {"seconds": ("BYTES", [2, 2], ["a", "b", "c", "d"])},
        "input 'seconds'",
    ),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_weights_that_do_not_fit_are_refused_by_name(published: Models, server: ServerProcess, case: str) -> None:
    changes, words = WRONG[case]
    with Asker(server.http_port) as asker:
        status, answer = asker.post("/v2/models/plain/infer", body())
        assert status == 200, answer
        status, answer = asker.post("/v2/models/plain/infer", body(**changes))
        assert status == 400
        assert words in answer["error"]


def test_a_weight_of_zero_is_as_no_id_and_weights_scale_rows(published: Models, server: ServerProcess) -> None:
    def score(**changes: Any) -> list[float]:
        with Asker(server.http_port) as asker:
            status, answer = asker.post("/v2/models/plain/infer", body(**changes))
        assert status == 200, answer
        found: list[float] = answer["outputs"][0]["data"]
        return found

    zero = score(seconds=("FP32", [2, 2], [0.0, 0.0, 0.0, 0.0]))
    half = score(seconds=("FP32", [2, 2], [0.25, 0.75, 1.0, 0.0]))
    whole = score()
    assert len({round(value, 6) for value in (zero[0], half[0], whole[0])}) == 3
    reference = ReferenceScorer(published.versions["plain"])
    rows = [
        {"user": 7, "item": 3, "price": 1.0, "clicked": [1, 2], "seconds": [0.25, 0.75]},
        {"user": 7, "item": 4, "price": 2.0, "clicked": [3], "seconds": [1.0]},
    ]
    with Operator(server.http_port, "plain") as operator:
        if operator.served() != open_version(published.versions["plain"]).snapshot:
            deltas = sorted((published.versions["plain"] / "deltas").iterdir())
            reference.apply(deltas[-1])
    np.testing.assert_allclose(half, reference.score(rows), atol=TOLERANCE)
