"""A training under everything that a kill may tear, once undisturbed, as digests to compare killed ones with.

Its rows are mostly on SSD, rows are evicted by steps and by norm, a Bloom filter admits, batches are read ahead, and
versions and deltas are published on the way.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from storage import open_version
from storage.checkpoint import list_deltas, open_delta
from trainer import TrainReport, train
from trainer.checkpoint import CommitLog, checkpoints, load_checkpoint, read_state
from trainer.config import TrainConfig, parse_text
from trainer.embedding import SparseRule
from trainer.models import build_model, build_tables

CONFIG = """
model_name: kills
label: clicked
inputs:
  - {{name: user, dtype: INT64}}
  - {{name: items, dtype: INT64, kind: list}}
features:
  - {{name: user, inputs: [user], output: ids, table: users}}
  - {{name: items, inputs: [items], output: ids, table: items, pooling: mean}}
tables:
  - {{name: users, dim: 16, eviction: {{after_steps: 60}}}}
  - name: items
    dim: 16
    admit_after: 2
    admission: {{type: bloom, expected_ids: 20000, false_rate: 0.01}}
    eviction: {{below_norm: 0.1, period_steps: 20}}
model: {{type: dlrm, top: [16]}}
optimizer: {{sparse: {{type: {rule}, lr: {rate}}}}}
training: {{batch_size: 64, epochs: 2, seed: 1, checkpoint_every_steps: 20, threads: 1}}
publish:
  {{delta_every_steps: 30, cumulative_every: 3, version_every_deltas: 4, version_at_share: 0.0,
   keep_deltas: 1000, keep_versions: 1000, keep_states: 2}}
"""
RULES: tuple[SparseRule, ...] = get_args(SparseRule)
# Rules whose step is about as long as the learning rate take a smaller one.
RATES: dict[SparseRule, float] = {"adam": 0.01, "adamw": 0.01, "rowwise_adam": 0.01, "lamb": 0.02}
RATE = 0.1
ROWS = 8000
USERS, ITEMS = 6000, 8000
# This share of the rows fits into DRAM: the part that is kept for each table holds all ids of any batch.
IN_DRAM = 0.2


def clicks(path: Path) -> None:
    """Writes a click log of users and items, some of them much more often than others."""
    rng = np.random.default_rng(1)
    users = (rng.beta(0.6, 2.0, ROWS) * USERS).astype(np.int64)
    items = [(rng.beta(0.6, 2.0, n) * ITEMS).astype(np.int64) for n in rng.integers(0, 6, ROWS)]
    pq.write_table(
        pa.table({"user": users, "items": items, "clicked": rng.random(ROWS) < 0.3}), path, row_group_size=1000
    )


class KilledTraining:
    """A training with one optimizer of the tables, and what its undisturbed run with all rows in DRAM made.

    place: the folder of the runs. data: the click log.
    """

    def __init__(self, rule: SparseRule, place: Path, data: Path) -> None:
        self.rule = rule
        self.place = place
        self._data = data
        self.config = parse_text(CONFIG.format(rule=rule, rate=RATES.get(rule, RATE)))
        #: The digests of commits by step.
        self.commits: dict[int, str] = {}
        whole = place / "whole"
        with _after_each_save(self._note_commit):
            report = self.train(whole, None)
        #: The digests of what was published, by its path in the repository.
        self.published = published(whole / "models")
        empty = {name: table.memory_bytes() for name, table in build_tables(self.config).items()}
        # A filter counts against the budget, and is whole in DRAM.
        self.dram_bytes = sum(
            empty[table.name] + int((table.memory_bytes - empty[table.name]) * IN_DRAM) for table in report.tables
        )
        began = time.monotonic()
        self.memory = self.train(place / "part", self.dram_bytes).memory
        #: The length of a run whose rows are mostly on SSD.
        self.seconds = time.monotonic() - began
        assert self.check(place / "part") == max(self.commits)
        self.check_end(place / "part")

    def train(self, place: Path, dram_bytes: int | None) -> TrainReport:
        """Begins the training in a folder, or resumes it."""
        resume = bool(checkpoints(place / "run"))
        return train(
            self.config,
            self._data,
            output=place / "run",
            repository=place / "models",
            progress=False,
            resume=resume,
            dram_bytes=dram_bytes,
        )

    def check(self, place: Path) -> int:
        """Returns the step of the newest commit, 0 for none. Raises AssertionError when anything there is wrong."""
        for path, digest in published(place / "models").items():
            assert self.published.get(path) == digest, f"{place}: {path} is not what the undisturbed run published"
        assert not list((place / "run" / "rows").glob("*")), "a killed process left files of rows"
        saved = checkpoints(place / "run")
        if not saved:
            return 0
        step = read_state(saved[-1]).position.step
        assert content(self.config, saved[-1]) == self.commits[step], f"{saved[-1]}: not the state of step {step}"
        return step

    def check_end(self, place: Path) -> None:
        """Raises AssertionError unless a run that is done made all that the undisturbed one made."""
        assert self.check(place) == max(self.commits), f"{place}: ended early"
        assert published(place / "models") == self.published, f"{place}: something was not published"

    def _note_commit(self, commit: Path, step: int) -> None:
        self.commits[step] = content(self.config, commit)


@contextmanager
def _after_each_save(note: Callable[[Path, int], None]) -> Iterator[None]:
    # Old commits are removed as new ones are made, so each is read as soon as it is made.
    real = CommitLog.save

    def saving(log: CommitLog, *args: Any, **options: Any) -> Any:
        commit = real(log, *args, **options)
        note(commit.folder, commit.state.position.step)
        return commit

    CommitLog.save = saving  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        CommitLog.save = real  # type: ignore[method-assign]


def content(config: TrainConfig, commit: Path) -> str:
    """Returns a digest of the rows, optimizer values, counts and filters of a commit, and of its dense weights."""
    tables = build_tables(config)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, tables)
        state = load_checkpoint(commit, model, tables)
    digest = hashlib.sha256(f"{state.position.epoch} {state.position.batch}".encode())
    for table in tables.values():
        digest.update(str(table.steps).encode())
        for array in (*table.export_rows(), *table.export_counts(), *table.removed()):
            digest.update(array.tobytes())
        if any(table.filter_shape):
            digest.update(table.filter_pages(0)[1].tobytes())
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def published(repository: Path) -> dict[str, str]:
    """Returns digests of all versions and deltas by their path: of rows, removals, weights and golden requests.

    Ids and times of snapshots, which are drawn anew in each run, are left out. Raises CheckpointError for damage.
    """
    found: dict[str, str] = {}
    for folder in (repository / "kills").glob("[0-9]*"):
        version = open_version(folder)
        digest = hashlib.sha256((folder / "golden.safetensors").read_bytes())
        for table in version.manifest.tables:
            for shard in version.shards(table.name):
                digest.update(shard.ids.tobytes() + shard.rows.tobytes())
        _add_weights(digest, version.weights())
        found[folder.name] = digest.hexdigest()
        for sequence in list_deltas(folder):
            place = folder / "deltas" / f"{sequence:06d}"
            delta = open_delta(place)
            digest = hashlib.sha256((place / "golden.safetensors").read_bytes())
            for spec in delta.tables:
                digest.update(delta.removed(spec.name).tobytes())
                for shard in delta.shards(spec.name):
                    digest.update(shard.ids.tobytes() + shard.rows.tobytes())
            _add_weights(digest, delta.weights())
            found[f"{folder.name}/{sequence}"] = digest.hexdigest()
    return found


def _add_weights(digest: Any, weights: dict[str, torch.Tensor]) -> None:
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
