"""Trainings with tables of every kind: they learn, and a resumed run and one beyond DRAM are the same to the bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer import load_trained, train
from trainer.checkpoint import checkpoints, load_checkpoint
from trainer.config import TrainConfig, parse_text
from trainer.data import Batch
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables

pytestmark = [pytest.mark.slow, pytest.mark.long]

TEXT = """
model_name: clicks
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: INT64}
  - {name: history, dtype: INT64, kind: list}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items}
  - {name: history, inputs: [history], output: ids, table: items, pooling: mean}
tables:
  - {name: users, dim: 8}
  - {name: items, KIND}
model: {type: deepfm, hidden: [16]}
optimizer: {sparse: {lr: 0.2, initial_accumulator: 0.0001}, dense: {lr: 0.005}}
training: {batch_size: 64, epochs: 4, seed: 3, shuffle_rows: 1500, checkpoint_every_steps: 60, threads: 1}
"""
KINDS = {
    "dynamic": "dim: 8",
    "static": "kind: static, dim: 8, rows: 400",
    "hashed": "kind: hashed, dim: 8, buckets: 200",
    "quotient_remainder": "kind: quotient_remainder, dim: 8, buckets: 32",
    "multi_hash": "kind: multi_hash, dim: 8, hashes: 2, buckets: 100",
    "classes": "kind: classes, dims: {hot: 8, cold: 4}, buckets: 64, admit_after: 8",
}
# Of 0.5 without items. Two ids that share a row cannot both be told from others.
LEARNT = {
    "dynamic": 0.75,
    "static": 0.75,
    "hashed": 0.7,
    "quotient_remainder": 0.6,
    "multi_hash": 0.7,
    "classes": 0.75,
}
EMPTY_BYTES = 105_000
ROWS = 4000
STOP = 130


# Kinds with more rows than fit into the DRAM that a test allows.
LARGE = {
    "dynamic": "dim: 8",
    "static": "kind: static, dim: 8, rows: 4000",
    "hashed": "kind: hashed, dim: 8, buckets: 3000",
    "quotient_remainder": "kind: quotient_remainder, dim: 8, buckets: 3000",
    "multi_hash": "kind: multi_hash, dim: 8, hashes: 2, buckets: 2000",
    "classes": "kind: classes, dims: {hot: 8, cold: 4}, buckets: 2000, admit_after: 2",
}
ITEMS, MORE_ITEMS = 400, 4000


def config_of(kind: str) -> TrainConfig:
    return parse_text(TEXT.replace("KIND", kind))


def one_epoch(kind: str) -> TrainConfig:
    return parse_text(TEXT.replace("KIND", kind).replace("epochs: 4", "epochs: 1"))


def clicks(rows: int, seed: int, items: int = ITEMS) -> pa.Table:
    rng = np.random.default_rng(seed)
    taste = np.random.default_rng(0).normal(size=items)
    user = rng.integers(0, 60, rows)
    item = (rng.beta(0.5, 2.0, rows) * items).astype(np.int64)
    history = [(rng.beta(0.5, 2.0, n) * items).astype(np.int64) for n in rng.integers(0, 4, rows)]
    clicked = rng.random(rows) < 1 / (1 + np.exp(-2.5 * taste[item]))
    return pa.table({"user": user, "item": item, "history": history, "clicked": clicked})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    pq.write_table(clicks(ROWS, 1), folder / "clicks.parquet", row_group_size=500)
    pq.write_table(clicks(ROWS, 1, MORE_ITEMS), folder / "more.parquet", row_group_size=500)
    pq.write_table(clicks(1500, 2), folder / "valid.parquet")
    return folder


def content(config: TrainConfig, commit: Path) -> dict[str, bytes]:
    """Returns what a commit restores, as bytes; all but stamps, which number commits, and a stop makes one more."""
    tables = build_tables(config)
    model = build_model(config, tables)
    load_checkpoint(commit, model, tables)
    found = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    for name, table in tables.items():
        ids, rows, slots, counts, _, ticks = table.export_rows()
        parts: tuple[np.ndarray[Any, Any], ...] = (
            ids,
            rows,
            slots,
            counts,
            ticks,
            *table.export_counts(),
            table.removed()[0],
        )
        found |= {f"{name}.{place}": part.tobytes() for place, part in enumerate(parts)}
    return found


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_learns_and_resumes_to_the_bit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    config = config_of(KINDS[kind])
    whole = train(
        config, data / "clicks.parquet", output=tmp_path / "whole", valid=data / "valid.parquet", progress=False
    )
    assert whole.auc is not None
    assert whole.auc > LEARNT[kind], "only the item says anything"
    real = TrainingLoop._step

    def stepping(loop: TrainingLoop, batch: Batch) -> float:
        if loop.position.step == STOP:
            signal.raise_signal(signal.SIGINT)
        return real(loop, batch)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "_step", stepping)
        with pytest.raises(KeyboardInterrupt):
            train(
                config, data / "clicks.parquet", output=tmp_path / "cut", valid=data / "valid.parquet", progress=False
            )
    assert checkpoints(tmp_path / "cut")[-1].name != checkpoints(tmp_path / "whole")[-1].name
    resumed = train(
        config,
        data / "clicks.parquet",
        output=tmp_path / "cut",
        valid=data / "valid.parquet",
        progress=False,
        resume=True,
    )
    assert content(config, resumed.checkpoint) == content(config, whole.checkpoint)
    assert resumed.auc == whole.auc


@pytest.mark.parametrize("kind", list(LARGE))
def test_a_kind_trains_beyond_dram_as_with_all_rows_in_it(data: Path, tmp_path: Path, kind: str) -> None:
    config = one_epoch(LARGE[kind])
    whole = train(config, data / "more.parquet", output=tmp_path / "whole", progress=False)
    # Rows and index of all tables; what an empty table takes cannot leave DRAM.
    least = EMPTY_BYTES * len(config.row_tables)
    dram_bytes = least + (sum(table.memory_bytes for table in whole.tables) - least) // 3
    tight = train(config, data / "more.parquet", output=tmp_path / "tight", progress=False, dram_bytes=dram_bytes)
    assert tight.memory is not None
    assert tight.memory.rows_on_ssd > 250
    assert content(config, tight.checkpoint) == content(config, whole.checkpoint)
    first, second = (load_trained(tmp_path / name).predict(data / "valid.parquet") for name in ("whole", "tight"))
    np.testing.assert_array_equal(first, second)


def test_rows_are_of_the_kind(data: Path, tmp_path: Path) -> None:
    for kind, options in KINDS.items():
        train(one_epoch(options), data / "clicks.parquet", output=tmp_path / kind, progress=False)
    rows = {kind: {n: t.size() for n, t in load_trained(tmp_path / kind).tables.items()} for kind in KINDS}
    seen = rows["dynamic"]["items"]
    assert 200 < seen < 400
    assert rows["static"]["items"] == 400
    assert 150 < rows["hashed"]["items"] <= 200
    assert rows["quotient_remainder"]["items-quotient"] == -(-400 // 32)
    assert rows["quotient_remainder"]["items-remainder"] == 32
    assert min(rows["multi_hash"]["items-0"], rows["multi_hash"]["items-1"]) >= 94
    assert max(rows["multi_hash"]["items-0"], rows["multi_hash"]["items-1"]) <= 100
    assert rows["classes"]["items-cold"] <= 64
    assert 20 < rows["classes"]["items-hot"] < seen - 50
