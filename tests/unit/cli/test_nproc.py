"""`emberline train --nproc`: what is wrong is said once, before any process is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli.frame import command
from trainer.config import TrainConfig, load_config

CONFIG = Path(__file__).parents[3] / "trainer" / "configs" / "movielens.yaml"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("processes were started")

    monkeypatch.setattr("trainer.rank_processes.RankProcesses.run", started)
    (tmp_path / "data.parquet").touch()

    def run(*options: str) -> tuple[int, str]:
        words = ["train", str(CONFIG), "--data", str(tmp_path / "data.parquet"), "--output", str(tmp_path / "run")]
        done = CliRunner().invoke(command, [*words, *options])
        return done.exit_code, done.output + str(done.exception or "")

    return run


def test_a_batch_without_a_row_for_each_rank(run: Callable[..., tuple[int, str]]) -> None:
    config: TrainConfig = load_config(CONFIG)
    code, said = run("--nproc", str(config.training.batch_size + 1))
    assert code == 1
    assert "training.batch_size is" in said


def test_nothing_to_resume(run: Callable[..., tuple[int, str]]) -> None:
    code, said = run("--nproc", "2", "--resume")
    assert code == 1
    assert "holds no checkpoint to resume from" in said


def test_ranks_of_torchrun_start_no_others(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    code, said = run("--nproc", "2")
    assert code == 2
    assert "leave it out with torchrun" in said
