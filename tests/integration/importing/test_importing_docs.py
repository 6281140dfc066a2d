"""The commands of docs/importing.md run on files as the page describes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli.frame import command
from tests.support.importing import written

PAGE = Path(__file__).parents[3] / "docs" / "importing.md"
TEXT = PAGE.read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def commands(text: str) -> list[str]:
    """Returns the lines of a section's blocks of shell."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


COMMANDS = {title: commands(text) for title, text in SECTIONS.items() if commands(text)}


WRITERS: dict[str, Callable[[Path], None]] = {
    "Look before you import": written.write_parquet,
    "What comes out": written.write_module,
    "Newer files": written.write_newer,
    "parquet": written.write_parquet,
    "safetensors": written.write_safetensors,
    "numpy": written.write_numpy,
    "state-dict": written.write_state_dict,
    "dcp": written.write_dcp,
    "dynamicemb": written.write_dynamicemb,
    "torcheasyrec": written.write_torcheasyrec,
    "hps": written.write_hps,
    "tf-checkpoint": written.write_tf_checkpoint,
    "tfra": written.write_tfra,
}


@pytest.mark.parametrize("title", COMMANDS)
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    WRITERS[title](tmp_path)
    for code in re.findall(r"```python\n(.*?)```", SECTIONS[title], re.DOTALL):
        (tmp_path / "ranker.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS[title]:
        program, *arguments = shlex.split(line)
        assert program == "emberline"
        done = CliRunner().invoke(command, [*arguments, "--quiet"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert ("published" in done.output) == ("--check" not in arguments)


def test_every_kind_has_a_section_with_a_command() -> None:
    from emberline.cli.import_tables import command_of
    from storage.importing import KINDS

    for kind in KINDS:
        assert any(f"import {kind} " in line for line in COMMANDS[kind]), kind
        assert command_of(kind).help
