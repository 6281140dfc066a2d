"""Tables of every kind, end to end: trained, published, served over each transport, changed by a delta, rolled back.

What is asked of the server is computed a second time in float64 from the published files alone, and a third time by the
trainer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import open_delta, open_version
from storage.checkpoint.signed import digest_of
from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.errors import UnsafeArtifact
from tests.e2e.conftest import rows_of
from tests.e2e.storm_clients import Operator
from tests.e2e.test_storm import set_options
from tests.reference.scorer import ReferenceScorer
from tests.support.server_process import ServerProcess
from tests.support.transports import ask_all, requests_of
from trainer import load_trained, train, update
from trainer.config import parse_text

pytestmark = pytest.mark.long

ROWS = 400
TRAINED = 6000
# A score of the trainer's own, in float32 as the server's, and one in float64.
SAME, TOLERANCE = 1e-6, 5e-6

POOLED = """
model_name: NAME
label: label
inputs:
  - {name: user, dtype: INT64, side: user}
  - {name: item, dtype: INT64}
  - {name: clicked, dtype: INT64, kind: list, max_length: 8}
  - {name: seconds, dtype: FP32, kind: list, max_length: 8}
features:
  - {name: user, inputs: [user], output: ids, table: user}
  - {name: item, inputs: [item], output: ids, table: item}
  - {name: latest, inputs: [clicked], transforms: [{op: truncate, length: 3, keep: last}], output: ids, table: item,
     pooling: weighted, weights: seconds}
  - {name: tags, inputs: [clicked], output: ids, table: item, pooling: mean}
tables:
  - {name: user, dim: 6, admit_after: 2}
  - TABLE
model: {type: MODEL}
optimizer:
  dense: {type: Adam, lr: 0.01}
  sparse: {type: adagrad, lr: 0.3, initial_accumulator: 0.0001}
training: {batch_size: 128, epochs: 1, threads: 1}
"""
SINGLE = POOLED.replace(POOLED[POOLED.index("  - {name: latest") : POOLED.index("tables:\n")], "").replace(
    POOLED[POOLED.index("  - {name: clicked") : POOLED.index("features:\n")], ""
)
SEQUENCE = """
model_name: NAME
label: label
inputs:
  - {name: user, dtype: INT64, side: user}
  - {name: item, dtype: INT64}
  - {name: clicked, dtype: INT64, kind: list, max_length: 8}
features:
  - {name: user, inputs: [user], output: ids, table: user}
  - {name: item, inputs: [item], output: ids, table: item}
  - {name: latest, inputs: [clicked], output: ids, table: item, pooling: none, length: 4}
tables:
  - {name: user, dim: 6, admit_after: 2}
  - TABLE
model: {type: din, target: item, sequence: latest, hidden: [8], attention: [8]}
optimizer:
  dense: {type: Adam, lr: 0.01}
  sparse: {type: adagrad, lr: 0.3, initial_accumulator: 0.0001}
training: {batch_size: 128, epochs: 1, threads: 1}
"""
KINDS = {
    "static": "kind: static, dim: 6, rows: 200",
    "hashed": "kind: hashed, dim: 6, buckets: 60",
    "divided": "kind: quotient_remainder, dim: 6, buckets: 20",
    "wide": "kind: quotient_remainder, dim: 6, buckets: 20, quotient_buckets: 9, combine: concat",
    "many": "kind: multi_hash, dim: 6, hashes: 3, buckets: 40",
    "beside": "kind: multi_hash, dim: 6, hashes: 2, buckets: 40, combine: concat",
    "classes": "kind: classes, dims: {hot: 6, cold: 2}, buckets: 30, admit_after: 60",
}
PRODUCT = "kind: quotient_remainder, dim: 6, buckets: 20, combine: mult"
# By model: its text, and how its rows are published.
MODELS = {
    **{name: (POOLED, f"{{name: item, {kind}}}", "dlrm", "") for name, kind in KINDS.items()},
    "bytes": (POOLED, f"{{name: item, {KINDS['many']}}}", "dlrm", "int8"),
    "deep": (POOLED, f"{{name: item, {KINDS['classes']}}}", "deepfm", ""),
    "linear": (POOLED, f"{{name: item, {KINDS['many']}}}", "wide_deep", ""),
    "crossed": (POOLED, f"{{name: item, {KINDS['classes']}}}", "dcnv2, hidden: [8]", ""),
    "stacked": (POOLED, f"{{name: item, {KINDS['wide']}}}", "dcnv2, structure: stacked, rank: 3", ""),
    "product": (SINGLE, f"{{name: item, {PRODUCT}}}", "dlrm", ""),
    "attended": (SEQUENCE, f"{{name: item, {PRODUCT}}}", "din", ""),
    "interest": (SEQUENCE, f"{{name: item, {KINDS['classes']}}}", "din", ""),
}


@dataclass(frozen=True)
class Models:
    place: Path
    versions: dict[str, Path]

    @property
    def test(self) -> Path:
        return self.place / "test.parquet"


def clicks(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, rows)
    clicked = [rng.integers(-3, 300, n).tolist() for n in lengths]
    seconds = [rng.exponential(1.0, n).astype(np.float32).tolist() for n in lengths]
    user, item = rng.integers(0, 100, rows), (rng.beta(0.6, 2.0, rows) * 303).astype(np.int64) - 3
    logit = np.sin(user) + 2 * np.cos(item) + np.array([sum(s) for s in seconds]) * 0.3 - 0.5
    return pa.table(
        {
            "user": user,
            "item": item,
            "clicked": pa.array(clicked, pa.list_(pa.int64())),
            "seconds": pa.array(seconds, pa.list_(pa.float32())),
            "label": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64),
        }
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Models:
    place = tmp_path_factory.mktemp("kinds")
    for name, rows, seed in (("train", TRAINED, 1), ("newer", 400, 2), ("test", ROWS, 3)):
        pq.write_table(clicks(rows, seed), place / f"{name}.parquet")
    versions: dict[str, Path] = {}
    for name, (text, table, model, row_type) in MODELS.items():
        text = text.replace("NAME", name).replace("TABLE", table).replace("MODEL", model)
        config = parse_text(text + (f"publish: {{row_types: {{item: {row_type}}}}}" if row_type else ""))
        report = train(
            config, place / "train.parquet", output=place / name, repository=place / "models", progress=False
        )
        assert report.published is not None
        versions[name] = report.published
        set_options(place / "models" / name, {"live_guard": "false"})
    return Models(place, versions)


@pytest.fixture(scope="module")
def server(published: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("serving")
    with ServerProcess(published.place / "models", place / "store", place / "log") as running:
        yield running


def served_scores(server: ServerProcess, model: str, data: Path) -> dict[str, np.ndarray]:
    return dict(ask_all(server.url, server.grpc, model, requests_of(server.url, model, data, ROWS)))


def check(published: Models, name: str, served: dict[str, np.ndarray], reference: ReferenceScorer | None) -> np.ndarray:
    """Compares what was served with the trainer's scores and the reference's; returns the trainer's."""
    trained = load_trained(published.place / name).predict(published.test).reshape(-1)
    assert np.std(trained) > 0.01, "scores that are all alike compare nothing"
    rounded = MODELS[name][3] != ""
    for transport, scores in served.items():
        difference = np.abs(scores.reshape(-1) - trained).max()
        assert (difference > SAME) if rounded else (difference <= SAME), transport
        if reference is not None:
            assert np.abs(scores.reshape(-1) - reference.score(rows_of(published.test, ROWS))).max() <= TOLERANCE
    return trained


@pytest.mark.parametrize("name", list(MODELS))
def test_what_is_served_is_what_was_trained_before_and_after_a_delta(
    published: Models, server: ServerProcess, name: str
) -> None:
    version = open_version(published.versions[name])
    # The reference has no sequences of combined tables.
    reference = None if MODELS[name][2] == "din" else ReferenceScorer(published.versions[name])
    first = served_scores(server, name, published.test)
    before = check(published, name, first, reference)
    folder = update(
        published.place / name, published.place / "newer.parquet", repository=published.place / "models", progress=False
    ).published[-1]
    delta = open_delta(folder)
    items = [table for table in delta.tables if table.name.startswith("item")]
    assert len(items) == len([table for table in version.tables if table.name.startswith("item")])
    assert all(table.rows for table in items), "a delta of no row changes nothing"
    if reference is not None:
        reference.apply(folder)
    with Operator(server.http_port, name) as operator:
        operator.wait_for(delta.snapshot)
        after = check(published, name, served_scores(server, name, published.test), reference)
        assert np.abs(after - before).max() > 1e-3
        operator.command("rollback", {"to": version.snapshot})
        for transport, scores in served_scores(server, name, published.test).items():
            np.testing.assert_array_equal(scores, first[transport], err_msg=transport)


def test_ids_of_one_bucket_get_one_score_and_two_hashes_tell_them_apart(
    published: Models, server: ServerProcess
) -> None:
    rows = [{"user": 7, "item": item, "clicked": [], "seconds": []} for item in range(300)]
    data = published.place / "items.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=clicks(1, 1).drop_columns("label").schema), data)
    distinct = {}
    for name in ("hashed", "divided", "many"):
        requests = requests_of(server.url, name, data, len(rows))
        _, scores = next(iter(ask_all(server.url, server.grpc, name, requests)))
        distinct[name] = len(np.unique(scores))
    assert distinct["hashed"] <= 60
    assert distinct["divided"] > 200
    assert distinct["many"] > 200


def test_the_manifest_says_the_kind_and_an_unknown_one_is_refused(published: Models, tmp_path: Path) -> None:
    kinds = {table.name: table.kind for table in open_version(published.versions["classes"]).manifest.tables}
    assert str(kinds["user"]) == "dynamic"
    assert str(kinds["item-hot"]) == "hot rows of item, 6 + 2 values, 30 buckets"
    copy = Path(shutil.copytree(published.versions["hashed"], tmp_path / "1"))
    content = parse_json((copy / "manifest.json").read_bytes(), what="manifest", max_bytes=1 << 20)
    assert isinstance(content, dict)
    tables = content["tables"]
    assert isinstance(tables, list)
    tables[1]["kind"]["type"] = "learned"
    content["digest"] = digest_of(content)
    (copy / "manifest.json").write_bytes(canonical_json(content))
    with pytest.raises(UnsafeArtifact, match=r"tables\.1\.kind.*'learned'"):
        open_version(copy)
