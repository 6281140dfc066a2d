"""Looking into a model's folder while it changes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from serving.updates.catalog import ModelFolder
from storage.checkpoint.manifest import MANIFEST
from storage.errors import ReadError, UnsafeArtifact


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Makes a version that cannot be read, which is reported as long as it is there."""
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

    monkeypatch.setattr(os, "stat", stat)
    assert ModelFolder(version.parent).scan().versions == {}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize(
    ("function", "place"), [("stat", "1"), ("stat", "1/manifest.json"), ("open", "1/manifest.json")]
)
def test_what_cannot_be_looked_at_is_not_taken_for_what_is_not_there(
    version: Path, monkeypatch: pytest.MonkeyPatch, number: int, function: str, place: str
) -> None:
    real = getattr(os, function)
    folder = ModelFolder(version.parent)
    before = folder.scan()

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(path) == version.parent / place:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, call)
        with pytest.raises((OSError, ReadError), match=os.strerror(number)):
            folder.scan()
    assert folder.scan().versions.keys() == before.versions.keys()


def test_deltas_that_cannot_be_listed_are_not_taken_for_none(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir
    (version / "deltas" / "000001").mkdir(parents=True)
    (version / "deltas" / "000001" / MANIFEST).write_text("{")

    def scandir(path: Any) -> Any:
        if Path(path) == version / "deltas":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    folder = ModelFolder(version.parent)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            folder.scan({1: 0})
    assert [delta.sequence for delta in folder.scan({1: 0}).deltas(1)] == [1]


def test_a_manifest_that_is_no_plain_file_is_refused_and_not_waited_for(version: Path) -> None:
    (version / MANIFEST).unlink()
    os.mkfifo(version / MANIFEST)
    assert isinstance(ModelFolder(version.parent).scan().versions[1].error, UnsafeArtifact)
    (version / MANIFEST).unlink()
    (version / MANIFEST).mkdir()
    assert isinstance(ModelFolder(version.parent).scan().versions[1].error, UnsafeArtifact)
