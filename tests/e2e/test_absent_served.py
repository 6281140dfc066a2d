"""Ids without a row, end to end: what they read as is trained, published, served, and the same after deltas.

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
from storage.features import FeatureEngine
from storage.tiers.planning.budget import row_cost
from tests.e2e.conftest import rows_of
from tests.e2e.storm_clients import Asker, Operator
from tests.e2e.test_storm import set_options
from tests.reference.initial import absent_row
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import load_trained, train, update
from trainer.config import parse_text

pytestmark = pytest.mark.long

ROWS = 600
TOLERANCE = 5e-6

# Rows that an update does not touch are erased: their ids read as absent again. Two features of `item` differ in what
# an id without a row reads as.
CONFIG = """
model_name: fp32
label: label
inputs:
  - {name: user, dtype: INT64, side: user}
  - {name: item, dtype: INT64}
  - {name: clicked, dtype: INT64, kind: list, max_length: 8}
  - {name: seconds, dtype: FP32, kind: list, max_length: 8}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: user}
  - {name: item, inputs: [item], output: ids, table: item}
  - {name: latest, inputs: [clicked], output: ids, table: item, pooling: weighted, weights: seconds,
     absent: {type: uniform, scale: 0.4, seed: 11}}
  - {name: tags, inputs: [clicked], output: ids, table: tag, pooling: mean}
  - {name: price, inputs: [price], transforms: [{op: log}], output: dense}
tables:
  - {name: user, dim: 6, admit_after: 3, expire_after_publishes: 1, absent: {type: normal, scale: 0.3}}
  - {name: item, dim: 6, admit_after: 2, expire_after_publishes: 1, absent: {type: constant, scale: -0.35}}
  - {name: tag, dim: 6, absent: {type: truncated_normal, scale: 0.5}}
model: {type: dlrm, bottom: [8], top: [8]}
optimizer:
  dense: {type: Adam, lr: 0.01}
  sparse: {type: adagrad, lr: 0.3, initial_accumulator: 0.0001}
training: {batch_size: 256, epochs: 2}
publish: {version_at_share: 0, version_every_deltas: 0}
"""
# By model: the row type of every table, and whether a tenth of its rows fits into DRAM.
MODELS = {"fp32": True, "fp16": False, "bf16": True, "int8": False}


@dataclass(frozen=True)
class Models:
    repository: Path
    versions: dict[str, Path]
    runs: dict[str, Path]
    test: Path
    newer: tuple[Path, Path]


def clicks(rows: int, seed: int, users: int, items: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, rows)
    clicked = [rng.integers(0, items, n).tolist() for n in lengths]
    seconds = [rng.exponential(1.0, n).astype(np.float32).tolist() for n in lengths]
    user, item = rng.integers(0, users, rows), rng.integers(0, items, rows)
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
    place = tmp_path_factory.mktemp("absent")
    for name, rows, seed, users, items in (
        ("train", 6000, 1, 500, 300),
        ("newer", 900, 2, 120, 80),
        ("newest", 900, 3, 400, 200),
        ("test", ROWS, 4, 800, 450),
    ):
        pq.write_table(clicks(rows, seed, users, items), place / f"{name}.parquet")
    train(parse_text(CONFIG), place / "train.parquet", output=place / "fp32", progress=False)
    versions: dict[str, Path] = {}
    runs: dict[str, Path] = {}
    for name in MODELS:
        runs[name] = place / name
        if name != "fp32":
            shutil.copytree(place / "fp32", runs[name])
        content = json.loads((runs[name] / "config.json").read_text())
        content["model_name"] = name
        content["publish"]["row_types"] = {"default": name}
        (runs[name] / "config.json").write_text(json.dumps(content))
    for name, small in MODELS.items():
        versions[name] = load_trained(runs[name]).publish(place / "models")
        options = {"live_guard": "false"}
        if small:
            tables = open_version(versions[name]).tables
            options["dram_bytes"] = str(sum(row_cost(table) * table.rows for table in tables) // 10)
        set_options(place / "models" / name, options)
    newer = (place / "newer.parquet", place / "newest.parquet")
    return Models(place / "models", versions, runs, place / "test.parquet", newer)


@pytest.fixture(scope="module")
def server(published: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("serving")
    with ServerProcess(published.repository, place / "store", place / "log") as running:
        yield running


def served_scores(server: ServerProcess, model: str, data: Path) -> dict[str, np.ndarray[Any, Any]]:
    return dict(ask_all(server.url, server.grpc, model, requests_of(server.url, model, data, ROWS)))


def zeros_for_absent_ids(version: Path) -> ReferenceScorer:
    """A reference that reads absent ids as zeros, as a server would that knew of nothing else."""
    reference = ReferenceScorer(version)
    for entry in reference.entries.values():
        entry.pop("absent", None)
    for feature in reference.spec["features"]:
        feature.pop("absent", None)
    return reference


@pytest.mark.parametrize("name", list(MODELS))
def test_absent_ids_are_served_as_trained_before_and_after_deltas(
    published: Models, server: ServerProcess, name: str
) -> None:
    version = open_version(published.versions[name])
    rows = rows_of(published.test, ROWS)
    reference = ReferenceScorer(published.versions[name])
    before = reference.score(rows)
    assert np.abs(before - zeros_for_absent_ids(published.versions[name]).score(rows)).max() > 1e-2
    trained = load_trained(published.runs[name]).predict(published.test)
    assert np.abs(trained - before).max() <= (TOLERANCE if name == "fp32" else 0.05)
    first = served_scores(server, name, published.test)
    for transport, scores in first.items():
        assert np.abs(scores - before).max() <= TOLERANCE, transport

    counts = []
    for data in published.newer:
        known = {table: set(content) for table, content in reference.tables.items()}
        report = update(published.runs[name], data, repository=published.repository, progress=False)
        folder = report.published[-1]
        delta = open_delta(folder)
        reference.apply(folder)
        counts.append(
            {
                table: (len(known[table] - set(now)), len(set(now) - known[table]))
                for table, now in reference.tables.items()
            }
        )
        with Operator(server.http_port, name) as operator:
            operator.wait_for(delta.snapshot)
        after = reference.score(rows)
        for transport, scores in served_scores(server, name, published.test).items():
            assert np.abs(scores - after).max() <= TOLERANCE, transport
        if name == "fp32":
            assert np.abs(load_trained(published.runs[name]).predict(published.test) - after).max() <= TOLERANCE
    assert min(counts[0]["user"][0], counts[0]["item"][0]) > 50, "rows went: their ids are absent again"
    assert min(counts[1]["user"][1], counts[1]["item"][1]) > 50, "rows came back"
    with Operator(server.http_port, name) as operator:
        operator.command("rollback", {"to": version.snapshot})
        for transport, scores in served_scores(server, name, published.test).items():
            np.testing.assert_array_equal(scores, first[transport], err_msg=transport)


def test_golden_requests_hold_absent_ids_of_every_table(published: Models) -> None:
    version = open_version(published.versions["fp32"])
    golden = version.golden()
    features = FeatureEngine(version.spec).run(golden.columns, golden.batch)
    for table in version.tables:
        known = np.concatenate([shard.ids for shard in version.shards(table.name)])
        for feature in version.spec.ids_features:
            if feature.table == table.name:
                assert not np.isin(features.ids[feature.name].values, known).all(), feature.name


def test_a_table_asked_as_a_model_says_which_rows_are_absent(published: Models, server: ServerProcess) -> None:
    version = open_version(published.versions["fp32"])
    known = int(next(version.shards("user")).ids[0])
    entry = json.loads((version.path / "manifest.json").read_text())["tables"]
    user = next(each for each in entry if each["name"] == "user")
    with Asker(server.http_port) as asker:
        status, answer = asker.post(
            "/v2/models/fp32.user/infer",
            {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [2, 1], "data": [known, 5_000_000]}]},
        )
    assert status == 200, answer
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    assert outputs["found"] == [True, False]
    np.testing.assert_allclose(outputs["rows"][6:], absent_row(user["absent"], 6, 5_000_000), rtol=1e-6)
