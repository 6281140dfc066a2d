"""Several ranks that follow a stream: one of them reads it, and all train as over data that is whole."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.trainer.follow_runs import followed
from tests.integration.trainer.ranks_process import run_ranks
from tests.integration.trainer.test_follow_folder import cut
from tests.integration.trainer.update_runs import check_published, restored, updated
from trainer.checkpoint import checkpoints, read_commit
from trainer.config import TrainConfig
from trainer.loop import TrainingLoop

pytestmark = pytest.mark.long


def _updated(place: Path, data: Path) -> None:
    updated(place, data)


def _followed(place: Path, stream: Path, dies: tuple[int, int] | None = None) -> None:
    """Follows a folder to its end as a rank. dies: a rank, and the batches after which it is killed."""
    take, left = TrainingLoop.take, [dies[1] if dies and os.environ["RANK"] == str(dies[0]) else -1]

    def dying(self: TrainingLoop, batch: object, seconds: float) -> None:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        take(self, batch, seconds)  # type: ignore[arg-type]

    TrainingLoop.take = dying  # type: ignore[method-assign]
    followed(place, stream)


def _trained(config: TrainConfig, place: Path) -> tuple[object, ...]:
    found, content = restored(config, checkpoints(place / "run")[-1])
    found.pop("update")
    return found, content


@pytest.mark.slow
def test_ranks_follow_a_folder_as_they_train_over_it(
    place: Path, newer: Path, config: TrainConfig, tmp_path: Path
) -> None:
    whole, rows = tmp_path / "whole", tmp_path / "newer.parquet"
    shutil.copytree(place, whole)
    pq.write_table(pq.read_table(newer).slice(0, 1537), rows)  # the first rank has no row of the last batch
    assert run_ranks(2, _updated, whole, rows) == [0, 0]
    files = cut(rows, tmp_path / "stream")
    for path in files[3:]:
        path.rename(path.with_suffix(".later"))
    assert run_ranks(2, _followed, place, tmp_path / "stream", (1, 5)) == [1, -signal.SIGKILL]
    assert run_ranks(2, _followed, place, tmp_path / "stream", (0, 1)) == [-signal.SIGKILL, 1]
    for path in files[3:]:
        path.with_suffix(".later").rename(path)
    assert run_ranks(2, _followed, place, tmp_path / "stream") == [0, 0]
    assert _trained(config, place) == _trained(config, whole)
    check_published(place, config)
    (position,) = read_commit(checkpoints(place / "run")[-1]).state.streams.values()
    assert position["rows"] == 1537
