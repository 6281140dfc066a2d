"""The commands of docs/importing.md run on files as the page describes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from emberline.cli.frame import command
from storage.checkpoint.tensors import write_tensors

PAGE = Path(__file__).parents[3] / "docs" / "importing.md"
TEXT = PAGE.read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def commands(text: str) -> list[str]:
    """Returns the lines of a section's blocks of shell."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


COMMANDS = {title: commands(text) for title, text in SECTIONS.items() if commands(text)}


def lists(rows: np.ndarray) -> pa.Array:
    """Returns rows as a column of lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _parquet(folder: Path) -> None:
    ids = np.arange(100)[::-1]
    rows = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    columns = {"user_id": ids, "embedding": lists(rows), "views": ids * 3, "name": ["x"] * 100}
    pq.write_table(pa.table(columns), folder / "users.parquet")
    (folder / "parts").mkdir()
    for part in ("a", "b"):
        pq.write_table(pa.table({"id": ids[:50], "row": lists(rows[:50])}), folder / "parts" / f"{part}.parquet")


def _numpy(folder: Path) -> None:
    np.savez(folder / "users.npz", ids=np.arange(10), rows=np.eye(10, 8, dtype=np.float32))
    np.savez(folder / "items.npz", ids=np.arange(20), rows=np.ones((20, 4), np.float32))


def _module(folder: Path) -> None:
    _numpy(folder)
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS["What comes out"], re.DOTALL)
    (folder / "ranker.py").write_text(code)
    torch.save(torch.nn.Linear(12, 1).state_dict(), folder / "head.pt")


def _safetensors(folder: Path) -> None:
    arrays: dict[str, np.ndarray] = {"keys": np.arange(20), "vectors": np.ones((20, 4), np.float16)}
    write_tensors(folder / "item.safetensors", arrays)


WRITERS: dict[str, Callable[[Path], None]] = {
    "Look before you import": _parquet,
    "What comes out": _module,
    "parquet": _parquet,
    "safetensors": _safetensors,
    "numpy": _numpy,
}


@pytest.mark.parametrize("title", COMMANDS)
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    WRITERS[title](tmp_path)
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
