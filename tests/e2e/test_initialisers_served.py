"""The example of docs/training.md for first rows and for ids without a row, from its YAML to the server's answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.e2e.conftest import rows_of
from tests.e2e.storm_clients import Asker
from tests.reference.initial import absent_row
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import train
from trainer.config import parse_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "training.md"
SEED, ROWS, TOLERANCE = 3, 64, 5e-6
# The optimizer moves no row, so that rows are served as they begin.
REST = f"""
model_name: shop
label: label
inputs:
  - {{name: user, dtype: INT64}}
  - {{name: item, dtype: INT64}}
  - {{name: clicked, dtype: INT64, kind: list, max_length: 8}}
model: {{type: dlrm, top: [8]}}
optimizer: {{dense: {{type: Adam, lr: 0.01}}, sparse: {{type: sgd, lr: 1.0e-30}}}}
training: {{batch_size: 100, epochs: 1, seed: {SEED}}}
"""


def example() -> str:
    """Returns the features and tables of the section about ids without a row."""
    section = DOCUMENT.read_text().partition("\n## Ids without a row\n")[2]
    block = re.search(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert block is not None
    return block[0]


def clicks(first: int, rows: int) -> pa.Table:
    """User n was seen n % 5 times, and so was item n; some ids are seen in no other rows."""
    users = np.array([n for n in range(first, first + rows) for _ in range(n % 5)])
    clicked = [[int(n) * 7 % 900, int(n) * 11 % 900] for n in users]
    return pa.table(
        {
            "user": users,
            "item": users + 10_000,
            "clicked": pa.array(clicked, pa.list_(pa.int64())),
            "label": (users % 3 == 0).astype(np.int64),
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("initialisers")
    pq.write_table(clicks(0, 200), folder / "train.parquet")
    pq.write_table(clicks(150, 100), folder / "test.parquet")
    config = parse_text(REST + "\n".join(line.removeprefix("    ") for line in example().splitlines()))
    train(config, folder / "train.parquet", output=folder / "run", repository=folder / "models", progress=False)
    return folder


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("serving")
    with ServerProcess(place / "models", folder / "store", folder / "log") as running:
        yield running


def row_of(options: dict[str, Any], table: str, value: int) -> np.ndarray[Any, Any]:
    """Returns what an initializer of the example gives an id, written from docs/format.md."""
    digest = hashlib.sha256(f"{SEED}/{table}".encode()).digest()[:8]
    entry = {"type": "uniform", "seed": f"{int.from_bytes(digest, 'little'):x}", **options}
    return absent_row(entry, 16, value)


def served_rows(server: ServerProcess, table: str, ids: list[int]) -> np.ndarray[Any, Any]:
    with Asker(server.http_port) as asker:
        status, answer = asker.post(
            f"/v2/models/shop.{table}/infer",
            {"inputs": [{"name": "ids", "datatype": "INT64", "shape": [len(ids), 1], "data": ids}]},
        )
    assert status == 200, answer
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    (rows,) = (np.array(data) for data in outputs.values() if len(data) == 16 * len(ids))
    return rows.reshape(-1, 16)


@pytest.mark.parametrize(("table", "start", "often"), [("users", 0, 3), ("items", 10_000, 2)])
def test_rows_and_absent_ids_are_served_as_the_table_says(
    place: Path, server: ServerProcess, table: str, start: int, often: int
) -> None:
    options = next(each for each in yaml.safe_load(example())["tables"] if each["name"] == table)
    assert options["admit_after"] == often
    for times in range(5):
        ids = [start + 20 + times, start + 45 + times]  # seen so many times
        expected = [row_of(options["init" if times >= often else "absent"], table, value) for value in ids]
        np.testing.assert_allclose(served_rows(server, table, ids), expected, atol=1e-7)


def test_scores_are_those_of_the_absent_rows_of_tables_and_features(place: Path, server: ServerProcess) -> None:
    version = place / "models" / "shop" / "1"
    rows = rows_of(place / "test.parquet", ROWS)
    reference = ReferenceScorer(version)
    (clicked,) = (feature for feature in reference.spec["features"] if feature["name"] == "clicked")
    expected = reference.score(rows)
    requests = requests_of(server.url, "shop", place / "test.parquet", ROWS)
    for transport, scores in ask_all(server.url, server.grpc, "shop", requests):
        assert np.abs(scores - expected).max() <= TOLERANCE, transport
    del clicked["absent"]
    assert np.abs(reference.score(rows) - expected).max() > 100 * TOLERANCE
