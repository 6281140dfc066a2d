"""Compares what ranks say of their steps, bytes, work and waiting, with what the data and the clock say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emberline.cli.inspect import command as inspect
from tests.integration.trainer.ranks_process import train_with_ranks
from tests.integration.trainer.test_ranks import SAME_MODEL
from tests.integration.trainer.test_tracking import scalars
from trainer.config import TrainConfig, parse_text
from trainer.data import BatchMaker, RowStream
from trainer.row_sources import training_rows

#: Learns something in one epoch, so that accuracy can be lost.
CONFIG = (
    SAME_MODEL.replace("dim: 4", "dim: 16")
    .replace("dim: 8", "dim: 32")
    .replace("epochs: 2", "epochs: 1")
    .replace("initial_accumulator: 0.01", "initial_accumulator: 0.0001")
)


def owner(given: int, ranks: int) -> int:
    """Returns the rank of an id, by MurmurHash3's last steps in plain integers."""
    mask = 2**64 - 1
    mixed = given & mask
    mixed = (mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD & mask
    mixed = (mixed ^ (mixed >> 33)) * 0xC4CEB9FE1A85EC53 & mask
    return ((mixed ^ (mixed >> 33)) >> 52) * ranks >> 12


def needed(config: TrainConfig, data: Path, ranks: int) -> list[Counter[str]]:
    """Returns the bytes that each rank must send in an epoch: different ids of others, rows for them, gradients."""
    training, dims = config.training, {part.rows.name: part.rows.dim for part in config.row_tables}
    rows = training_rows(config, data)
    config = config.with_column_types(rows.column_types)
    maker = BatchMaker(config.spec, config.targets)
    stream = RowStream(rows, training.batch_size, shuffle_rows=training.shuffle_rows, seed=training.seed)
    found = [Counter[str]() for _ in range(ranks)]
    for whole in stream.epoch(0):
        for rank in range(ranks):
            first, last = whole.num_rows * rank // ranks, whole.num_rows * (rank + 1) // ranks
            inputs = maker.inputs(whole.slice(first, last - first))
            asked: dict[str, set[int]] = {name: set() for name in dims}
            for feature in config.spec.ids_features:
                values, offsets = inputs[f"{feature.name}.values"].numpy(), inputs[f"{feature.name}.offsets"].numpy()
                for begin, end in zip(offsets, offsets[1:], strict=False):
                    used = values[begin:end][: feature.length or None]
                    asked[feature.table].update(used.tolist())
            for table, ids in asked.items():
                for each in ids:
                    other = owner(each, ranks)
                    if other != rank:
                        found[rank].update(ids=8, gradients=4 * dims[table])
                        found[other].update(rows=4 * dims[table])
    return found


@pytest.mark.slow
def test_a_step_sends_little_more_than_its_ids_rows_and_gradients(clicks: Path, tmp_path: Path) -> None:
    assert train_with_ranks(2, CONFIG, clicks, tmp_path / "run") == [0, 0]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    ranks = report["profile"]["ranks"]
    for rank, must in zip(ranks, needed(parse_text(CONFIG), clicks, 2), strict=True):
        sent = {kind: rank["sent"][kind] for kind in must}
        assert sent["gradients"] == must["gradients"]
        assert must.total() < sum(sent.values()) < 1.1 * must.total()
    assert ranks[0]["sent"]["rows"] == ranks[1]["received"]["rows"]
    assert ranks[0]["received"]["gradients"] == ranks[1]["sent"]["gradients"]
    shown = CliRunner().invoke(inspect, [str(tmp_path / "run"), "--quiet"])
    assert "rank 1 (" in shown.stdout
    assert "receives" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_sixteen_bits_are_half_of_the_bytes(clicks: Path, tmp_path: Path, wire: str) -> None:
    """And cost hardly anything of what is learned."""
    config = CONFIG.replace("training: {", f"training: {{wire: {wire}, ")
    for name, used in (("fp32", CONFIG), (wire, config)):
        assert train_with_ranks(2, used, clicks, tmp_path / name, valid=0.2) == [0, 0]
    exact, rounded = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("fp32", wire))
    for kind in ("rows", "gradients", "dense"):
        whole, half = (report["profile"]["ranks"][0]["sent"][kind] for report in (exact, rounded))
        assert 0.5 <= half / whole < 0.52
    assert 0.0 < abs(rounded["epochs"][0]["loss"] / exact["epochs"][0]["loss"] - 1) < 1e-3
    assert rounded["auc"] == pytest.approx(exact["auc"], abs=2e-3)


@pytest.mark.slow
def test_a_slow_rank_is_named(clicks: Path, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    errors.mkdir()
    options: dict[str, Any] = {"slow": (1, 0.03), "errors": errors, "track": "tensorboard"}
    assert train_with_ranks(2, SAME_MODEL, clicks, tmp_path / "run", **options) == [0, 0]
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    fast, slow = report["profile"]["ranks"]
    assert slow["seconds"] - slow["waited_seconds"] > 0.03 * slow["steps"]
    tracked = scalars(tmp_path / "run" / "tensorboard")
    waited = sum(value for _, value in tracked["ranks/0/waited_seconds"])
    assert waited == pytest.approx(fast["waited_seconds"], rel=1e-5)
    assert fast["waited_seconds"] > 0.02 * fast["steps"]
    (named,) = [text for text in report["warnings"] if text.startswith("rank ")]
    assert "rank 1 (" in named
    assert "a slower machine" in named
    assert (errors / "0").read_text().count(named) == 1
    assert named not in (errors / "1").read_text()
