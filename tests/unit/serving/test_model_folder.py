"""Looking into a model's folder while it changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from serving.updates import catalog
from serving.updates.catalog import ModelFolder
from storage.checkpoint.manifest import MANIFEST


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A version that cannot be read, which is told of as long as it is there."""
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("{")
    return folder


def test_a_version_that_cannot_be_read_is_found_with_its_error(version: Path) -> None:
    found = ModelFolder(version.parent).scan().versions[1]
    assert found.error is not None
    (version / MANIFEST).unlink()
    found = ModelFolder(version.parent).scan().versions[1]
    assert "missing" in str(found.error)


@pytest.mark.parametrize("after", ["the folder was looked at", "the manifest was looked at"])
def test_a_folder_that_leaves_while_it_is_looked_at_is_not_there(
    version: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Retention renames a folder before it deletes it: at any moment all of it is there, or nothing."""
    real = os.stat
    gone = version.with_name(".1")

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        found = real(path, *arguments, **options)
        wanted = version if after == "the folder was looked at" else version / MANIFEST
        if Path(path) == wanted and not gone.exists():
            version.rename(gone)
        return found

    monkeypatch.setattr(catalog.os, "stat", stat)
    assert ModelFolder(version.parent).scan().versions == {}
