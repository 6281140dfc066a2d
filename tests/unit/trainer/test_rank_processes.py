"""Ranks of `--nproc`: an error of one ends all of them, and a kill starts all of them again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trainer.rank_processes import RankProcesses

_HEAD = """
import json, os, pathlib, signal, sys, time
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def killed(): os.kill(os.getpid(), signal.SIGKILL)
"""


def ranks(code: str, said: list[str], max_restarts: int = 2) -> int:
    command = [sys.executable, "-S", "-c", _HEAD + code]
    return RankProcesses(command, 2, max_restarts=max_restarts, say=said.append).run()


def test_each_rank_is_told_its_place(tmp_path: Path) -> None:
    said: list[str] = []
    code = f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text(json.dumps(dict(os.environ)))"
    assert ranks(code, said) == 0
    places = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert [(place["RANK"], place["WORLD_SIZE"], place["LOCAL_WORLD_SIZE"]) for place in places] == [
        ("0", "2", "2"),
        ("1", "2", "2"),
    ]
    assert places[0]["MASTER_PORT"] == places[1]["MASTER_PORT"]
    assert said == []


def test_a_killed_rank_has_all_ranks_start_again() -> None:
    said: list[str] = []
    assert ranks("if restarts == 0: time.sleep(300) if rank == 0 else killed()", said) == 0
    assert len(said) == 1
    assert said[0].startswith("rank 1 was ended by SIGKILL")
    assert said[0].endswith("starting all ranks again (1 of 2)")


def test_ranks_that_are_always_killed_are_given_up() -> None:
    said: list[str] = []
    assert ranks("killed()", said, max_restarts=1) == 1
    assert [text.rpartition("; ")[2] for text in said] == ["starting all ranks again (1 of 1)", "giving up"]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_ends_all_ranks_and_would_come_again(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.rank_processes._ENDING_S", 0.2)
    said: list[str] = []
    assert ranks(f"time.sleep(300) if rank != {rank} else sys.exit(1)", said) == 1
    assert said == []
