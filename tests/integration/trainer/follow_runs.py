"""Runs that follow a stream, and processes that die while they do."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

from tests.integration.trainer.update_runs import restored
from trainer import UpdateReport, follow
from trainer.checkpoint import CommitLog
from trainer.config import TrainConfig
from trainer.loop import TrainingLoop
from trainer.publishing import Publisher


def followed(place: Path, source: Path | str, **options: object) -> UpdateReport:
    given = {"until_idle": 0.0, "progress": False, **options}
    return follow(place / "run", source, repository=place / "models", **given)  # type: ignore[arg-type]


def trained_state(config: TrainConfig, report: UpdateReport) -> tuple[object, ...]:
    """Returns all that was learned, without the names of what it was learned from."""
    found, content = restored(config, report.checkpoint)
    found.pop("update")
    return found, content


def dying(place: Path, source: Path | str, step: str, times: int, options: dict[str, object]) -> None:
    """Follows a stream, and dies at one of its steps."""
    left = [times]

    def before(owner: type, method: str, name: str) -> None:
        real = getattr(owner, method)

        def wrapped(self: object, *args: object, **options: object) -> object:
            if name == step:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *args, **options)

        setattr(owner, method, wrapped)

    before(TrainingLoop, "take", "take")
    before(Publisher, "prepare", "prepare")
    before(CommitLog, "save", "save")
    before(Publisher, "write", "write")
    followed(place, source, until_idle=None, **options)


def killed(place: Path, source: Path | str, step: str, times: int, **options: object) -> None:
    """Runs `dying` in a process of its own, which starts with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch.export", "storage.checkpoint.graph"])
    child = context.Process(target=dying, args=(place, source, step, times, options))
    child.start()
    child.join(300.0)
    assert child.exitcode == -signal.SIGKILL
