"""Runs the commands of docs/any-module.md unchanged, and parses its options."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

from emberline.cli.publish import command
from tests.support.page_commands import run_commands
from tests.support.proxies import wait_until
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "any-module.md").read_text(encoding="utf-8")
FILES = {
    block.splitlines()[0].removeprefix("# "): block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    if block.startswith("# ")
}
(COMMANDS,) = (block.splitlines() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))


def test_the_commands_work_as_they_are_written(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def before(name: str, server: ServerProcess | None) -> list[str]:
        if name == "snapshots":
            assert server is not None
            wait_until(partial(_serves_the_delta, server), "the delta is served")
        return []

    _, version, delta, inspected, snapshots = [output for _, output, _ in run_commands(COMMANDS, tmp_path, before)]
    assert "published build/models/ranker/1" in version
    assert "published build/models/ranker/1/deltas/000001" in delta
    assert re.search(r"items\W+200\W+0\W+16", inspected), inspected
    assert "serves 1.1" in snapshots


def _serves_the_delta(server: ServerProcess) -> bool:
    samples = server.metrics().items()
    return any(value == 1 for name, value in samples if name.startswith("emberline_snapshot_sequence"))


def test_its_options_are_those_of_the_command() -> None:
    known = {option for parameter in command.params for option in parameter.opts}
    for line in re.findall(r"`(emberline publish [^`]*)`", PAGE) + COMMANDS:
        if line.startswith("emberline publish"):
            assert {word for word in shlex.split(line) if word.startswith("--")} <= known
