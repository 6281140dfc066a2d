"""Errors of ranks on one machine: the same one is printed once, and a rank is named where ranks differ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import sys
from emberline.cli.command import Command
from emberline.cli.frame import run_command
import click
from storage.errors import ConfigError, RankLost

@click.command(cls=Command)
@click.argument("kind")
def command(kind):
    if kind == "lost":
        raise RankLost("another rank ended")
    if kind == "interrupted":
        raise KeyboardInterrupt("stopped after step 4")
    if kind == "bug":
        raise ZeroDivisionError
    raise ConfigError(kind)

run_command(command, sys.argv[1:], "emberline")
"""


def said(folder: Path, *kinds: str) -> tuple[list[int], list[str]]:
    """Returns the exit codes and the lines of ranks of torchrun, or --nproc, that fail in these ways."""
    ranks = []
    for rank, kind in enumerate(kinds):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(kinds), "LOCAL_WORLD_SIZE": len(kinds)}
        file = str(folder / str(rank) / "error.json")
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        command = [sys.executable, "-c", _CODE, kind]
        ranks.append(
            subprocess.Popen(
                command, env={**environment, "TORCHELASTIC_ERROR_FILE": file}, stderr=subprocess.PIPE, text=True
            )
        )
    lines = [line for each in ranks for line in each.communicate(timeout=60.0)[1].splitlines()]
    return [each.returncode for each in ranks], lines


@pytest.mark.parametrize(
    ("kinds", "lines"),
    [
        pytest.param(["no file"] * 3, ["emberline: no file"], id="all alike"),
        pytest.param(["lost", "bad row", "lost"], ["emberline: rank 1: bad row"], id="one"),
        pytest.param(["bad config", "lost", "lost"], ["emberline: bad config"], id="the first"),
        pytest.param(["lost"] * 2, ["emberline: another rank ended"], id="one elsewhere"),
        pytest.param(["a", "b"], ["emberline: a", "emberline: rank 1: b"], id="each its own"),
        pytest.param(["interrupted"] * 2, ["emberline: stopped after step 4"], id="Ctrl-C"),
    ],
)
def test_what_ranks_say_together_is_said_once(kinds: list[str], lines: list[str], tmp_path: Path) -> None:
    codes, found = said(tmp_path, *kinds)
    assert found == lines
    assert set(codes) == {130 if kinds[0] == "interrupted" else 1}


def test_a_bug_that_all_ranks_meet_has_one_traceback(tmp_path: Path) -> None:
    codes, lines = said(tmp_path, "bug", "bug")
    assert codes == [1, 1]
    assert sum(line == "ZeroDivisionError" for line in lines) == 1


def test_wrong_usage_is_shown_once(tmp_path: Path) -> None:
    codes, lines = said(tmp_path, "--no-such", "--no-such")
    assert codes == [2, 2]
    assert sum("No such option" in line for line in lines) == 1
