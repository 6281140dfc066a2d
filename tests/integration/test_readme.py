"""The README's example runs as it stands, and its commands are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from emberline.cli.frame import command
from storage import open_version

README = Path(__file__).parents[2] / "README.md"
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.S)).replace("\\\n", "")
COMMANDS = [line.removesuffix(" &") for line in SHELL.splitlines() if line.startswith("emberline ")]


def test_the_python_example_publishes_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 1
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks[0], str(README), "exec"), {"__name__": "readme"})
    version = open_version(tmp_path / "build" / "models" / "ranker" / "1")
    assert version.tables[0].rows == 100_000


def test_the_walkthrough_by_hand_works_to_its_end() -> None:
    names = [line.split()[1] for line in COMMANDS]
    assert names == [
        "data",
        "train",
        "serve",
        "predict",
        "update",
        "predict",
        "snapshots",
        "rollback",
        "resume",
        "inspect",
    ]


@pytest.mark.parametrize("line", COMMANDS)
def test_its_commands_are_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/live.md has the same walkthrough, and a test runs it."""
    monkeypatch.chdir(tmp_path)
    _, name, *arguments = shlex.split(line)
    for argument in arguments:
        if argument.startswith("build/"):
            place = tmp_path / argument
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch() if place.suffix else place.mkdir(exist_ok=True)
    (tmp_path / "trainer" / "configs").mkdir(parents=True)
    (tmp_path / "trainer" / "configs" / "movielens.yaml").touch()
    context = click.Context(command)
    found = command.get_command(context, name)
    assert found is not None, line
    found.make_context(name, arguments, parent=context)
