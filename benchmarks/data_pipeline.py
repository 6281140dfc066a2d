"""Claims about the pipeline of training: a whole step takes hardly longer than its slowest stage does alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.catalog import Run
from benchmarks.measure import Contestant
from trainer.config import TrainConfig, load_config
from trainer.data import Batch, BatchMaker, DataRows, RowStream
from trainer.datasets import write_wide
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer, sparse_optimizer
from trainer.row_sources import training_rows
from trainer.run import threads, train

ROWS, QUICK_ROWS = 1_000_000, 60_000
BATCH = 2048
#: A whole step may take 1.15 times as long as the slowest stage alone.
OF_SLOWEST = 1 / 1.15
STAGES = ("read alone", "features alone", "step alone")
_SAMPLES = 1e-3
_MAX_S = 300.0


def pipeline(run: Run) -> None:
    """Trains an epoch over 40 columns of Parquet, and does the work of each of its stages alone."""
    wide = load_config(Path("trainer/configs/wide40.yaml"))
    training = wide.training.model_copy(update={"batch_size": BATCH, "epochs": 1})
    config = wide.model_copy(update={"training": training})
    data = run.work / "wide"
    write_wide(data, rows=run.size(ROWS, QUICK_ROWS))
    rows = training_rows(config, data / "train.parquet")
    config = config.with_column_types(rows.column_types)
    stream = RowStream(rows, BATCH, shuffle_rows=config.training.shuffle_rows, seed=config.training.seed)
    maker = BatchMaker(config.spec, config.targets)
    tables = list(stream.epoch(0))
    batches = [maker.batch(table) for table in tables]

    def whole(turn: int) -> float:
        report = train(config, data / "train.parquet", output=run.work / f"run{turn}", progress=False)
        assert report.profile is not None
        return rows.rows / report.profile.seconds

    contestants: dict[str, Contestant] = {
        "ours": whole,
        "read alone": _rate(rows, lambda: [None for _ in stream.epoch(0)]),
        "features alone": _rate(rows, lambda: [maker.batch(table) for table in tables]),
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


def _rate(rows: DataRows, work: Callable[[], object]) -> Contestant:
    def once(_: int) -> float:
        began = time.perf_counter()
        work()
        return rows.rows / (time.perf_counter() - began)

    return once


def _steps_seconds(config: TrainConfig, batches: list[Batch]) -> float:
    """Trains a new model on batches that lie in memory, as an ordinary loop does."""
    with threads(config.training.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        tables = build_tables(config)
        model = build_model(config, tables)
        dense = dense_optimizer(config.optimizer.dense, model)
        sparse = sparse_optimizer(config.optimizer.sparse, tables)
        model.train()
        began = time.perf_counter()
        for batch in batches:
            dense.zero_grad()
            sparse.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(model.logits(batch.inputs), batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            dense.step()
            sparse.step()
        return time.perf_counter() - began
