"""Claim: kill -9 at any moment of a training whose rows are mostly on SSD leaves its last commit, whole and alone.

A training with a tenth of its rows in DRAM is killed after a random time and resumed, again and again, until it is
done; then it begins anew. After every kill the newest commit must be bit for bit one that the same training makes with
all rows in DRAM; and so must the last one be.

    python -m benchmarks.training_kills              # 20 kills: about three minutes
    python -m benchmarks.training_kills --quick      # 5 kills
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import shutil
import signal
import tempfile
from collections import Counter
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.machine import machine_line
from trainer import TrainReport, train
from trainer.checkpoint import checkpoints, load_checkpoint, read_state
from trainer.config import TrainConfig, parse_text
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables

CONFIG = """
model_name: kills
label: clicked
inputs:
  - {name: user, dtype: INT64}
  - {name: items, dtype: INT64, kind: list}
features:
  - {name: user, inputs: [user], output: ids, table: users}
  - {name: items, inputs: [items], output: ids, table: items, pooling: mean}
tables:
  - {name: users, dim: 16}
  - {name: items, dim: 16, admit_after: 2}
model: {type: dlrm, top: [16]}
optimizer: {sparse: {lr: 0.1}}
training: {batch_size: 64, epochs: 2, seed: 1, checkpoint_every_steps: 20, threads: 1}
"""
ROWS = 8000
USERS, ITEMS = 6000, 8000
# A training is killed within this share of the time that a whole one takes.
LONGEST = 0.5


def clicks(path: Path) -> None:
    """Writes a click log of users and items, some of them much more often than others."""
    rng = np.random.default_rng(1)
    users = (rng.beta(0.6, 2.0, ROWS) * USERS).astype(np.int64)
    items = [(rng.beta(0.6, 2.0, n) * ITEMS).astype(np.int64) for n in rng.integers(0, 6, ROWS)]
    pq.write_table(
        pa.table({"user": users, "items": items, "clicked": rng.random(ROWS) < 0.3}), path, row_group_size=1000
    )


def trained(place: Path, data: Path, dram_bytes: int | None) -> TrainReport:
    """Begins the training in a folder, or resumes it."""
    resume = bool(checkpoints(place))
    config = parse_text(CONFIG)
    return train(config, data, output=place, progress=False, resume=resume, dram_bytes=dram_bytes)


def _begin(began: Event, place: Path, data: Path, dram_bytes: int) -> None:
    """Runs in the child, and signals `began` after loading, which takes longer than the steps.

    The signal is sent before `run`, which a training resumed between its last commit and its end calls with no step
    left.
    """
    real = TrainingLoop.run

    def running(loop: TrainingLoop) -> None:
        began.set()
        real(loop)

    TrainingLoop.run = running  # type: ignore[method-assign, assignment]
    trained(place, data, dram_bytes)


def content(config: TrainConfig, commit: Path) -> str:
    """Returns a digest of the rows, optimizer values, counts and dense weights of a commit."""
    tables = build_tables(config)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, tables)
        load_checkpoint(commit, model, tables)
    digest = hashlib.sha256()
    for table in tables.values():
        for array in (*table.export_rows()[:4], *table.export_counts()):
            digest.update(array.tobytes())
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


class Kills:
    """The content of each commit of the training with all rows in DRAM, by step; and its click log."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.config = parse_text(CONFIG)
        self.data = work / "clicks.parquet"
        clicks(self.data)
        report = trained(work / "whole", self.data, None)
        self.dram_bytes = sum(table.rows * (4 * 32 + 112) for table in report.tables) // 10
        part = trained(work / "part", self.data, self.dram_bytes)
        self.memory, self.seconds = part.memory, part.seconds
        self.commits: dict[int, str] = {}
        # Old commits are removed as new ones are made, so a second training reads each as soon as it is made.
        self._note_commits(work / "noted")

    def _note_commits(self, place: Path) -> None:
        from trainer.checkpoint import CommitLog

        real = CommitLog.save

        def saving(log: CommitLog, *args: object, **options: object) -> object:
            commit = real(log, *args, **options)  # type: ignore[arg-type]
            self.commits[commit.state.position.step] = content(self.config, commit.folder)
            return commit

        CommitLog.save = saving  # type: ignore[method-assign, assignment]
        try:
            trained(place, self.data, None)
        finally:
            CommitLog.save = real  # type: ignore[method-assign]

    def check(self, place: Path) -> int:
        """Returns the step of the newest commit, 0 for none. Raises AssertionError when its content is wrong."""
        saved = checkpoints(place)
        if not saved:
            return 0
        step = read_state(saved[-1]).position.step
        assert content(self.config, saved[-1]) == self.commits[step], f"{saved[-1]}: not the state of step {step}"
        return step


def run(kills: Kills, trials: int, *, seed: int = 5) -> Counter[str]:
    """Kills the training `trials` times; counts "killed", "was done" (with the right result) and "commits"."""
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.run"])
    rng = np.random.default_rng(seed)
    place, found = kills.work / "killed", Counter[str]()
    while found["killed"] < trials:
        began = context.Event()
        child = context.Process(target=_begin, args=(began, place, kills.data, kills.dram_bytes))
        child.start()
        assert began.wait(120.0), "the training did not begin"
        child.join(float(rng.uniform(0.0, LONGEST)) * kills.seconds)
        if child.is_alive():
            child.kill()
        child.join(60.0)
        assert child.exitcode in (0, -signal.SIGKILL), f"the training ended with {child.exitcode}"
        step = kills.check(place)
        if child.exitcode == 0:
            assert step == max(kills.commits), f"the training ended at step {step}"
            found["was done"] += 1
            shutil.rmtree(place)
        else:
            found["killed"] += 1
            found["commits"] += step > 0
            assert not list((place / "rows").glob("*")), "a killed process left files of rows"
    if place.exists():
        trained(place, kills.data, kills.dram_bytes)
        assert kills.check(place) == max(kills.commits)
    return found


def main() -> None:
    """Runs the trials and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 kills")
    given = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder))
        assert kills.memory is not None
        print(f"a training of {kills.seconds:.1f} s, at its end {kills.memory.line()}")
        print(dict(run(kills, 5 if given.quick else 20)))


if __name__ == "__main__":
    main()
