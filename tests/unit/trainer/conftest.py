"""A small click log with a planted signal, and the configurations that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from trainer.config import TrainConfig, parse_text

ROWS = 6000

CLICKS = """
model_name: clicks
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: BYTES, column: item_code}
  - {name: tags, dtype: INT64, kind: list}
  - {name: history, dtype: BYTES, kind: list, missing: "null"}
  - {name: price, dtype: FP32}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], transforms: [{op: hash, seed: 5}], output: ids, table: items}
  - {name: tags, inputs: [tags], output: ids, table: tags, pooling: mean}
SEQUENCE
  - {name: price, inputs: [price], transforms: [{op: log}], output: dense}
tables:
  - {name: users, dim: 8}
  - {name: items, dim: 8, admit_after: 2}
  - {name: tags, dim: 8}
model: MODEL
optimizer: {sparse: {lr: 0.2, initial_accumulator: 0.0001}, dense: {lr: 0.005}}
training: {batch_size: 256, epochs: 2, seed: 3, shuffle_rows: 1500, checkpoint_every_steps: 5}
"""
SEQUENCE = (
    "  - {name: history, inputs: [history], transforms: [{op: hash, seed: 5}, {op: truncate, length: 4, keep: last}], "
    "output: ids, table: items, pooling: POOLING}"
)
MODELS = {
    "deepfm": "{type: deepfm, hidden: [16], dropout: 0.1}",
    "dlrm": "{type: dlrm, bottom: [8], top: [16]}",
    "wide_deep": "{type: wide_deep, hidden: [16]}",
    "dcnv2": "{type: dcnv2, hidden: [16], cross_layers: 2, rank: 5}",
    "mmoe": "{type: mmoe, experts: 3, expert: [16, 8], tower: [4]}",
    "ple": "{type: ple, shared_experts: 1, expert: [16, 8], tower: [4]}",
    "din": "{type: din, target: item, sequence: history, hidden: [16], attention: [8]}",
    "sasrec": "{type: sasrec, target: item, sequence: history, hidden: [16], heads: 2, dropout: 0.1}",
    "hstu": "{type: hstu, target: item, sequence: history, hidden: [16], dim: 6, heads: 2, dropout: 0.1}",
}


def clicks_config(model: str = "deepfm", **replaced: str) -> TrainConfig:
    """Returns the configuration of a model over the click log.

    replaced: training options as YAML.
    """
    pooling = "none, length: 4" if "sequence:" in MODELS[model] else "mean"
    text = CLICKS.replace("SEQUENCE", SEQUENCE.replace("POOLING", pooling)).replace("MODEL", MODELS[model])
    if replaced:
        old = text[text.index("training: {") :]
        inner = dict(entry.split(": ", 1) for entry in old[len("training: {") : old.index("}")].split(", "))
        inner.update(replaced)
        text = text.replace(old, "training: {" + ", ".join(f"{k}: {v}" for k, v in inner.items()) + "}\n")
    return parse_text(text)


def click_table(rows: int, seed: int) -> pa.Table:
    """Makes clicks from hidden tastes of users and items; a click is likely where they agree."""
    rng = np.random.default_rng(seed)
    tastes = np.random.default_rng(0).normal(size=(100, 3))
    user, item = rng.integers(0, 40, rows), rng.integers(40, 100, rows)
    logit = 2.0 * (tastes[user] * tastes[item]).sum(axis=1) + tastes[item, 0]
    clicked = rng.random(rows) < 1 / (1 + np.exp(-logit))
    lengths = rng.integers(0, 4, rows)
    return pa.table(
        {
            "user": pa.array(user * 7919 - 50_000),
            "item_code": pa.array([f"item-{i}" for i in item]),
            "tags": pa.array([[int(i) % 7, int(i) % 11][: n % 3] for i, n in zip(item, lengths, strict=True)]),
            "history": pa.array(
                [[f"item-{j}" for j in rng.integers(40, 100, n)] if n else None for n in lengths], pa.list_(pa.string())
            ),
            "price": pa.array(rng.exponential(10.0, rows).astype(np.float32)),
            "clicked": pa.array(clicked),
            "unused": pa.array(np.zeros(rows)),
        }
    )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Limits torch to one thread.

    These models are small: on a busy machine, torch's threads would spend their time waiting for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a folder of two Parquet files with small row groups."""
    folder = tmp_path_factory.mktemp("clicks")
    half = ROWS // 2
    pq.write_table(click_table(half, 1), folder / "a.parquet", row_group_size=700)
    pq.write_table(click_table(half, 2), folder / "b.parquet", row_group_size=500)
    return folder


@pytest.fixture(scope="session")
def fresh_clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes rows that are not trained on."""
    path = tmp_path_factory.mktemp("fresh") / "valid.parquet"
    pq.write_table(click_table(2000, 3), path)
    return path


@pytest.fixture
def config_of() -> Callable[..., TrainConfig]:
    """Makes the configuration of a model by its type."""
    return clicks_config
