"""A training run whose tables are planted, so that every figure of them is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.checkpoint import CommitLog, Position, TrainingState
from trainer.config import TrainConfig, parse_text
from trainer.embedding import EmbeddingTable
from trainer.models import build_model, build_tables
from trainer.publishing.lineage import Lineage, Published
from trainer.settings import settings_of
from trainer.trained import save_config

CONFIG = """
model_name: planted
label: clicked
inputs:
  - {name: item, dtype: INT64}
  - {name: word, dtype: BYTES}
features:
  - {name: item, inputs: [item], output: ids, table: items}
  - {name: word, inputs: [word], transforms: [{op: hash, buckets: 1000}], output: ids, table: words}
tables:
  - {name: items, dim: 4, admit_after: 2}
  - {name: words, dim: 4}
model: {type: dlrm, top: [4]}
"""
# Occurrences of the ids 0, 3, 6, ... of `items`: 100 rows, 1,450 occurrences.
COUNTS = np.repeat([2, 5, 20, 1000], [60, 30, 9, 1]).astype(np.uint32)
ITEMS = np.arange(100, dtype=np.int64) * 3
# 20 rows of zeros, 10 of norm 1/4096, 69 of norm 1 and one of norm 2.
NORMS = np.repeat([0.0, 2.0**-12, 1.0, 2.0], [20, 10, 69, 1]).astype(np.float32)
# 50 rows were changed last before publish 1 (stamps 1 to 2), 40 before publish 2 (stamps 3 to 4), 10 since.
STAMPS = np.repeat([2, 4, 5], [50, 40, 10]).astype(np.uint32)
# Last used 100, 10 and 0 ticks ago.
TICKS = np.repeat([900, 990, 1000], [50, 40, 10]).astype(np.uint32)
WAITING = np.arange(40, dtype=np.int64) * 3 + 1


class Run:
    """A run under construction: tables that a test changes, and commits of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: TrainConfig = parse_text(CONFIG)
        self.tables: dict[str, EmbeddingTable] = build_tables(self.config)
        self._model = build_model(self.config, self.tables)
        self._dense = torch.optim.SGD(self._model.parameters(), lr=0.1)
        folder.mkdir(parents=True)
        save_config(folder, self.config)

    def commit(self, lineage: Lineage | None = None) -> Path:
        """Saves the tables as they are now."""
        publishing = None if lineage is None else lineage.to_json_value()
        state = TrainingState(Position(step=7), settings_of(self.config), {}, "planted", [], publishing=publishing)
        with CommitLog(self.folder) as log:
            return log.save(state, self.tables, (self._model, self._dense)).folder


def planted_rows() -> np.ndarray:
    """Returns rows of `items`, (100, 4) float32, of the planted norms."""
    rows = np.zeros((len(ITEMS), 4), np.float32)
    rows[:, 1] = -NORMS
    return rows


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Makes a run without a commit."""
    return Run(tmp_path / "run")


@pytest.fixture
def planted(run: Run) -> Path:
    """Makes a run with planted tables in one commit, which published twice."""
    items = run.tables["items"]
    items.set_stamp(6)
    items.restore(ITEMS, planted_rows(), np.full((100, 4), 0.5, np.float32), COUNTS, STAMPS, TICKS)
    items.restore_counts(WAITING, np.ones(len(WAITING), np.uint32))
    run.tables["words"].lookup(np.arange(500, dtype=np.int64), train=True)
    published = (
        Published("a" * 32, 1, 0, {"items": 2, "words": 0}),
        Published("b" * 32, 1, 1, {"items": 4, "words": 0}),
    )
    run.commit(Lineage(version=1, base="a" * 32, published=published))
    return run.folder
