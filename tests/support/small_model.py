"""Serves the same published version again as another model, whose DRAM holds a tenth of its rows."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage import PublishedVersion
from storage.tiers.planning.budget import row_cost

SUFFIX = "_tenth"


def tenth_of(version: PublishedVersion) -> int:
    """Returns a tenth of the DRAM bytes that all rows would take."""
    return sum(row_cost(table) * table.rows for table in version.tables) // 10


def small_model(repository: Path, name: str, published: Path, *, dram_bytes: int) -> str:
    """Copies the version and config.pbtxt of `name` to a new model with that budget; returns the new model's name."""
    small = name + SUFFIX
    shutil.copytree(published, repository / small / published.name)
    text = (
        (repository / name / "config.pbtxt")
        .read_text(encoding="utf-8")
        .replace(f'name: "{name}"', f'name: "{small}"', 1)
    )
    text += f'parameters {{\n  key: "dram_bytes"\n  value {{ string_value: "{dram_bytes}" }}\n}}\n'
    (repository / small / "config.pbtxt").write_text(text, encoding="utf-8")
    return small
