"""Colours, progress bars and widths follow the stream and the environment."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberline.terminal import columns_of, has_colours, is_terminal

ROOT = Path(__file__).parents[3]
_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal of 80 columns, and an environment that says nothing about one."""
    for variable in _VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield slave
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize(
    ("variables", "in_terminal", "elsewhere"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colours(
    terminal: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    in_terminal: bool,
    elsewhere: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with os.fdopen(os.dup(terminal), "w") as stream, (tmp_path / "file").open("w") as file:
        assert has_colours(stream) is in_terminal
        assert has_colours(file) is elsewhere
        assert not is_terminal(file)


def test_columns_come_from_the_variable_or_the_terminal(
    terminal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with os.fdopen(os.dup(terminal), "w") as stream, (tmp_path / "file").open("w") as file:
        assert columns_of(stream) == 80
        assert columns_of(file) is None
        assert columns_of(None) is None
        for given, found in (("132", 132), ("0", 80), ("many", 80), ("", 80)):
            monkeypatch.setenv("COLUMNS", given)
            assert columns_of(stream) == found
        monkeypatch.setenv("COLUMNS", "60")
        assert columns_of(file) == 60
    assert columns_of(stream) == 60
    assert not is_terminal(stream)  # it is closed


def test_a_file_gets_neither_colours_nor_bars(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("user,item\n1,2\n")
    done = subprocess.run(
        [sys.executable, "-m", "emberline", "data", "convert", "clicks.csv", "clicks.parquet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "wrote 1 rows" in done.stdout
