"""Trainings by several ranks: real processes that meet over gloo, as torchrun starts them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainer import train
from trainer.config import parse_text
from trainer.data import Batch
from trainer.loop import TrainingLoop

#: Starts processes with everything imported.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__, "torch.export", "storage.checkpoint.graph"])


def train_with_ranks(ranks: int, config: str, data: Path, output: Path, **options: Any) -> list[int | None]:
    """Trains with so many ranks, and returns their exit codes.

    options: those of `train`; `dies`, a rank and the step at which it is killed; `slow`, a rank and the seconds that it
    sleeps in each step; `errors`, a folder that gets what each prints on standard error, by its number.
    """
    return run_ranks(ranks, _train, config, data, output, options)


def run_ranks(ranks: int, work: Callable[..., None], *arguments: Any) -> list[int | None]:
    """Calls `work`, of a module, with the environment and these arguments at each rank, and returns the exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [
        {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        for rank in range(ranks)
    ]
    children = [CONTEXT.Process(target=_placed, args=(place, work, arguments)) for place in places]
    for child in children:
        child.start()
    for child in children:
        child.join(300.0)
    return [child.exitcode for child in children]


def _placed(place: Mapping[str, str], work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(place, MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    work(*arguments)


def _train(config: str, data: Path, output: Path, options: dict[str, Any]) -> None:
    place = os.environ
    errors: Path | None = options.pop("errors", None)
    if errors is not None:
        os.dup2(os.open(errors / place["RANK"], os.O_WRONLY | os.O_CREAT), 2)
    slow = options.pop("slow", None)
    if slow is not None and slow[0] == int(place["RANK"]):
        forward = TrainingLoop._step

        def sleeping(self: TrainingLoop, batch: Batch) -> float:
            time.sleep(slow[1])
            return forward(self, batch)

        TrainingLoop._step = sleeping  # type: ignore[method-assign]
    dies = options.pop("dies", None)
    if dies is not None and dies[0] == int(place["RANK"]):
        step = TrainingLoop._step

        def dying(self: TrainingLoop, batch: Batch) -> float:
            if self.position.step == dies[1]:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, batch)

        TrainingLoop._step = dying  # type: ignore[method-assign]
    train(parse_text(config), data, output=output, progress=False, **options)
