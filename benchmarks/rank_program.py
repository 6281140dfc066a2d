"""Trains steps when it is asked to, as one rank of several or alone; started by benchmarks.ranks on a core of its own.

A step reads its rows from Parquet, makes features and learns, as a training does. Steps that do not count come first,
so that nothing of the counted ones was made before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from benchmarks.rank_world import Task

#: Steps before those that count: as many as the stages ahead of the step may have made while it stood still.
RUN_UP = 24


@dataclass(frozen=True)
class Steps:
    """Figures of the steps that counted."""

    seconds: float
    #: Seconds of the processor, of all threads.
    processor_seconds: float
    #: Bytes that went to other ranks, by kind.
    sent: dict[str, int]
    #: Seconds of exchanges and of waiting for other ranks.
    waited_seconds: float
    #: Seconds of the processor by stage; empty for a peer.
    stages: dict[str, float]
    loss: float


class Trainer(Protocol):
    """Takes steps one after the other."""

    def step(self) -> float:
        """Returns the loss of a step."""

    def figures(self) -> tuple[dict[str, int], float, dict[str, float]]:
        """Returns the bytes sent, the seconds waited, and the seconds of stages, all so far."""

    def auc(self, path: Path) -> float:
        """Returns the AUC on the rows of a file."""


class Ours:
    """A training of ours, without commits."""

    def __init__(self, task: Task) -> None:
        import torch

        from benchmarks.rank_world import config
        from trainer.batch_flow import BatchFlow
        from trainer.models import build_model, build_tables
        from trainer.ranks import join_ranks
        from trainer.row_sources import training_rows
        from trainer.step import TrainingStep
        from trainer.step_profile import StepProfile, time_lookups
        from trainer.wire import WIRES

        self._joined = join_ranks()
        ranks = self._joined.__enter__()
        made = config(task.batch, **task.options)
        ranks.wire = WIRES[made.training.wire]
        rows = training_rows(made, task.data, learns=True)
        made = made.with_column_types(rows.column_types)
        torch.manual_seed(made.training.seed)
        tables = build_tables(made, None, ranks)
        model = build_model(made, tables)
        model.train()
        self._profile = StepProfile()
        time_lookups(model, self._profile)
        self._flow = BatchFlow(made, rows, self._profile, ranks)
        self._learning = TrainingStep(made, model, tables, self._profile, ranks)
        self._ranks, self._config, self._model = ranks, made, model
        self._taken = 0
        self._batches = self._endless()

    def _endless(self) -> Iterator[Any]:
        epoch = 0
        while True:
            stream = self._flow.stream(in_order=False)
            with self._flow.ahead(stream, epoch, 0) as batches:
                for number, batch in enumerate(batches):
                    yield batch, self._flow.rows_of(number)
            epoch += 1

    def step(self) -> float:
        batch, whole = next(self._batches)
        loss, _ = self._learning.take(batch, self._taken, None, whole_rows=whole)
        self._taken += 1
        return loss

    def figures(self) -> tuple[dict[str, int], float, dict[str, float]]:
        stages = {name: self._profile.seconds(name) for name in ("read", "features", "lookup", "dense", "update")}
        return dict(self._ranks.traffic.sent), self._ranks.traffic.seconds, stages

    def auc(self, path: Path) -> float:
        from trainer.evaluate import evaluate
        from trainer.row_sources import evaluation_rows

        rows = evaluation_rows(self._config, path)
        found = evaluate(self._model, rows, self._flow.maker, ranks=self._ranks).metrics
        return float(next(iter(found.values()))["auc"] or 0.0)


def serve(task: Task, pipe: Connection) -> None:
    """Trains as many steps as the pipe says, again and again, and answers with their figures; None ends it."""
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    os.environ["OMP_NUM_THREADS"] = "1"
    if task.size > 1:
        os.environ.update(
            RANK=str(task.rank), WORLD_SIZE=str(task.size), LOCAL_WORLD_SIZE=str(task.size),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(task.port), GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
    import torch

    torch.set_num_threads(1)
    if task.latency_s:
        _delay(task.latency_s)
    trainer: Trainer
    if task.kind == "ours":
        trainer = Ours(task)
    elif task.kind == "torchrec":
        from benchmarks.rank_torchrec import TorchRec

        trainer = TorchRec(task)
    else:
        from benchmarks.rank_peers import Ddp

        trainer = Ddp(task)
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        pipe.send(_steps(trainer, asked) if isinstance(asked, int) else trainer.auc(asked))
    os._exit(0)  # the threads that read ahead are in the middle of something


def _steps(trainer: Trainer, steps: int) -> Steps:
    for _ in range(RUN_UP):
        trainer.step()
    sent, waited, stages = trainer.figures()
    began, used = time.perf_counter(), time.process_time()
    loss = sum(trainer.step() for _ in range(steps)) / steps
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    now, waited_now, stages_now = trainer.figures()
    return Steps(
        seconds,
        processor,
        {kind: count - sent.get(kind, 0) for kind, count in now.items()},
        waited_now - waited,
        {name: value - stages[name] for name, value in stages_now.items()},
        loss,
    )


def _delay(seconds: float) -> None:
    """Lets every exchange of torch.distributed take so much longer, as over a network; the processor is free."""
    import torch.distributed as dist

    class Late:
        def __init__(self, work: Any) -> None:
            self._work, self._ready = work, time.perf_counter() + seconds

        def wait(self) -> None:
            self._work.wait()
            time.sleep(max(0.0, self._ready - time.perf_counter()))

    def late(call: Any) -> Any:
        def wrapped(*arguments: Any, async_op: bool = False, **options: Any) -> Any:
            work = Late(call(*arguments, async_op=True, **options))
            return work if async_op else work.wait()

        return wrapped

    for name in ("all_to_all_single", "all_reduce"):
        setattr(dist, name, late(getattr(dist, name)))
