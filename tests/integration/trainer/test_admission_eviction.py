"""Trainings with a filter and eviction on: killed and resumed to the same bytes, and removals in what is published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.checkpoint import list_deltas, open_delta
from storage.errors import ConfigError
from tests.integration.trainer.update_runs import check_published
from trainer import TrainReport, train
from trainer.checkpoint import checkpoints, read_commit
from trainer.config import TrainConfig, parse_text
from trainer.data import Batch
from trainer.loop import TrainingLoop

pytestmark = pytest.mark.slow

ROWS = 3200
TEXT = """
model_name: clicks
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: item, dtype: INT64}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: item, inputs: [item], output: ids, table: items}
tables:
  - {name: users, dim: 4, eviction: {after_seconds: 400, below_norm: 0.05}}
  - {name: items, dim: 4, admit_after: 2, admission: {type: bloom, expected_ids: 4000, false_rate: 0.01},
     eviction: {after_steps: 32}}
model: {type: dlrm, bottom: [4], top: [4]}
optimizer: {sparse: {type: adagrad, lr: 0.2, initial_accumulator: 0.0001}, dense: {lr: 0.005}}
training: {batch_size: 32, epochs: 1, shuffle: false, checkpoint_every_steps: 10, time_column: at}
publish: {delta_every_steps: 20, cumulative_every: 3, version_every_deltas: 0, version_at_share: 0.0, keep_states: 64}
"""


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes rows of 1,600 seconds, in which users and items come and go."""
    rng = np.random.default_rng(5)
    at = np.arange(ROWS) // 2
    item = rng.integers(0, 400, ROWS) + at // 4
    user = (rng.beta(0.5, 2.0, ROWS) * 300).astype(np.int64) + at // 8
    clicked = rng.random(ROWS) < 1 / (1 + np.exp(-(item % 7 - 3.0)))
    folder = tmp_path_factory.mktemp("data")
    stamps = pa.array(at, pa.timestamp("s"))
    table = pa.table({"user": user, "item": item, "clicked": clicked, "at": stamps, "word": ["x"] * ROWS})
    pq.write_table(table, folder / "clicks.parquet", row_group_size=500)
    return folder


def trained(config: TrainConfig, data: Path, place: Path, **more: object) -> TrainReport:
    return train(
        config,
        data / "clicks.parquet",
        output=place / "run",
        repository=place / "models",
        progress=False,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainReport]:
    place = tmp_path_factory.mktemp("whole")
    return place, trained(parse_text(TEXT), data, place)


def tables_of(place: Path) -> list[tuple[object, dict[str, str]]]:
    """Returns what each commit has of the tables: stamps, ticks and sweeps, and the digests of rows and filters."""
    commits = [read_commit(folder) for folder in checkpoints(place / "run")]
    return [
        (
            {name: vars(entry) for name, entry in commit.tables.items()},
            {path: digest for path, digest in commit.files.items() if path.startswith("tables/")},
        )
        for commit in commits
    ]


# The second is a little more than the filter takes.
@pytest.mark.parametrize("dram_bytes", [None, 320_000])
@pytest.mark.parametrize("step", [37, 64])
def test_a_killed_run_is_resumed_to_the_same_bytes(
    step: int,
    dram_bytes: int | None,
    whole: tuple[Path, TrainReport],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = parse_text(TEXT)
    original = TrainingLoop._step

    def killed(self: TrainingLoop, batch: Batch) -> float:
        if self.position.step == step:
            raise KilledError
        return original(self, batch)

    monkeypatch.setattr(TrainingLoop, "_step", killed)
    with pytest.raises(KilledError):
        trained(config, data, tmp_path, dram_bytes=dram_bytes)
    monkeypatch.undo()
    report = trained(config, data, tmp_path, resume=True, dram_bytes=dram_bytes)
    assert dram_bytes is None or (report.memory is not None and report.memory.rows_written > 0)
    assert tables_of(tmp_path) == tables_of(whole[0])
    assert [(table.rows, table.waiting) for table in report.tables] == [
        (table.rows, table.waiting) for table in whole[1].tables
    ]


def test_what_went_is_removed_by_deltas_and_every_snapshot_is_a_commit(whole: tuple[Path, TrainReport]) -> None:
    place, report = whole
    check_published(place, parse_text(TEXT))
    version = place / "models" / "clicks" / "1"
    deltas = [open_delta(version / "deltas" / f"{number:06d}") for number in list_deltas(version)]
    removed = {name: sum(len(delta.removed(name)) for delta in deltas) for name in ("users", "items")}
    assert min(removed.values()) > 30
    users, items = report.tables
    assert users.rows < 350
    assert items.rows < 500
    assert items.waiting > 50


def test_without_publishing_nothing_is_remembered_of_what_went(data: Path, tmp_path: Path) -> None:
    train(parse_text(TEXT), data / "clicks.parquet", output=tmp_path / "run", progress=False)
    newest = read_commit(checkpoints(tmp_path / "run")[-1])
    assert min(entry.forgotten for entry in newest.tables.values()) > 0


@pytest.mark.parametrize(
    ("column", "words"), [("when", "has no column 'when'"), ("word", "the column 'word' is string, expected seconds")]
)
def test_a_time_column_that_is_none_is_refused_by_name(column: str, words: str, data: Path, tmp_path: Path) -> None:
    config = parse_text(TEXT.replace("time_column: at", f"time_column: {column}"))
    with pytest.raises(ConfigError, match=words) as refused:
        trained(config, data, tmp_path)
    assert refused.value.field == "training.time_column"
