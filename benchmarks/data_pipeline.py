"""Claims about the pipeline of training: a whole step takes hardly longer than its slowest stage does alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.catalog import Run
from benchmarks.measure import Contestant
from benchmarks.plain_tables import train_batches
from trainer.config import TrainConfig
from trainer.data import TOGETHER_ROWS, Batch, BatchMaker, DataRows, RowStream
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer, sparse_optimizer
from trainer.run import threads, train

BATCH = 2048
#: A whole step may take 1.15 times as long as the slowest stage alone.
OF_SLOWEST = 1 / 1.15
STAGES = ("read alone", "features alone", "step alone")
_SAMPLES = 1e-3
_MAX_S = 300.0


def pipeline(run: Run, path: Path, config: TrainConfig, rows: DataRows) -> None:
    """Trains an epoch over the rows of a file, and does the work of each of its stages alone."""
    training = config.training.model_copy(update={"batch_size": BATCH, "epochs": 1})
    config = config.model_copy(update={"training": training})
    stream = RowStream(rows, BATCH, shuffle_rows=training.shuffle_rows, seed=training.seed)
    maker = BatchMaker(config.spec, config.targets)
    together = max(1, TOGETHER_ROWS // BATCH)
    tables = list(stream.cut(stream.windows(0), together))
    batches = [batch for table in tables for batch in maker.batches(table, BATCH)]

    def whole(turn: int) -> float:
        report = train(config, path, output=run.work / f"run{turn}", progress=False)
        assert report.profile is not None
        return rows.rows / report.profile.seconds

    contestants: dict[str, Contestant] = {
        "ours": whole,
        "read alone": rate(lambda: sum(table.num_rows for table in stream.cut(stream.windows(0), together)), rows.rows),
        "features alone": rate(
            lambda: sum(batch.rows for table in tables for batch in maker.batches(table, BATCH)), rows.rows
        ),
        "step alone": lambda _: rows.rows / _steps_seconds(config, batches),
    }
    samples = run.interleave(contestants, max_s=_MAX_S)
    samples.add("slowest stage alone", lambda figures: min(figures[stage] for stage in STAGES))
    for other, target in (("slowest stage alone", OF_SLOWEST), *((stage, None) for stage in STAGES)):
        run.report.compare(
            f"training: 40 columns of Parquet, batches of {BATCH:,}",
            samples,
            other,
            unit="k samples/s",
            scale=_SAMPLES,
            target=target,
        )
    run.settle(samples)


def rate(work: Callable[[], int], rows: int) -> Contestant:
    """Returns a contestant that does `work` once and gives `rows` a second; `work` returns how many rows it saw."""

    def once(_: int) -> float:
        began = time.perf_counter()
        if work() != rows:
            raise AssertionError(f"expected {rows} rows: the figures would mean nothing")
        return rows / (time.perf_counter() - began)

    return once


def _steps_seconds(config: TrainConfig, batches: list[Batch]) -> float:
    """Trains a new model on batches that lie in memory, and returns the seconds of the steps."""
    with threads(config.training.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        tables = build_tables(config)
        model = build_model(config, tables)
        dense = dense_optimizer(config.optimizer.dense, model)
        sparse = sparse_optimizer(config.optimizer.sparse, tables)
        began = time.perf_counter()
        train_batches(model, batches, dense, sparse)
        return time.perf_counter() - began
