"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage import open_version

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_publishes_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 1
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks[0], str(README), "exec"), {"__name__": "readme"})
    version = open_version(tmp_path / "build" / "models" / "ranker" / "1")
    assert version.tables[0].rows == 100_000
