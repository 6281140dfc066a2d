"""The commands of docs/store.md are understood, and its metrics are those of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from emberline.cli.frame import command

PAGE = (Path(__file__).parents[3] / "docs" / "store.md").read_text()
LINES = re.findall(r"^(emberline .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_every_command_is_understood(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    found = command.get_command(click.Context(command), name)
    assert found is not None
    found.make_context(name, arguments, parent=click.Context(command))


def test_every_metric_of_the_store_stands_there() -> None:
    from serving.http import metrics

    names = [entry[0] for entry in (*metrics._OF_STORES, *metrics._OF_TABLES, *metrics._OF_ONE_TABLE)]
    for name in (*names, "ids_absent_total", "ids_unresolved_total", "dram_budget_bytes"):
        assert f"`{name}`" in PAGE, name
    assert len(LINES) == 6
