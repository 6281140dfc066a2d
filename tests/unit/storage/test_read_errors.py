"""A file that cannot be read now proves nothing about what was published, and is no error of the content."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage.checkpoint import PublishedDelta, PublishedVersion, list_deltas, open_delta, open_version, write_delta
from storage.checkpoint.folder import plain_file
from storage.errors import ReadError
from tests.support.storage.delta_parts import delta_parts

NUMBERS = [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM]


@pytest.fixture
def version(copy_version: Callable[[], Path]) -> PublishedVersion:
    return open_version(copy_version())


@pytest.fixture
def delta(version: PublishedVersion) -> PublishedDelta:
    return open_delta(write_delta(version.path, **delta_parts(version)))


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, function: str, place: Path, number: int) -> Iterator[None]:
    real = getattr(os, function)

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(path) == place:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, call)
        yield


def read_all(version: PublishedVersion, delta: PublishedDelta) -> None:
    for published in (open_version(version.path), open_delta(delta.path)):
        for table in published.tables:
            list(published.shards(table.name))
    opened = open_version(version.path, verify=False)
    opened.golden()
    opened.graph()
    delta = open_delta(delta.path, verify=False)
    delta.weights()
    delta.golden(opened.spec, opened.manifest.graph)
    for table in delta.tables:
        list(delta.shards(table.name))


@pytest.mark.parametrize("number", NUMBERS)
def test_no_file_of_a_version_or_delta_is_refused_because_it_cannot_be_opened(
    version: PublishedVersion, delta: PublishedDelta, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    files = [path for path in version.path.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        with failing(monkeypatch, "open", path, number), pytest.raises(ReadError, match=path.name):
            read_all(version, delta)
    for folder in (version.path, delta.path, version.path / "tables", delta.path / "tables"):
        with failing(monkeypatch, "scandir", folder, number), pytest.raises(ReadError, match=os.strerror(number)):
            read_all(version, delta)
    read_all(version, delta)


def test_a_read_that_fails_after_the_file_was_opened_is_no_damage_either() -> None:
    # The system answers a read of this process's memory at address 0 with EIO.
    with pytest.raises(ReadError, match=os.strerror(errno.EIO)), plain_file(Path("/proc/self/mem")) as file:
        file.read(1)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_delta_that_cannot_be_looked_at_is_not_left_out(
    version: PublishedVersion, delta: PublishedDelta, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert list_deltas(version.path) == [delta.sequence]
    for function, place in (("scandir", delta.path.parent), ("lstat", delta.path / "manifest.json")):
        with failing(monkeypatch, function, place, number), pytest.raises(OSError, match=os.strerror(number)):
            list_deltas(version.path)


def test_a_file_that_is_replaced_while_its_folder_is_read_is_looked_at_again(
    version: PublishedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renames a file between the listing and the read, as rsync does."""
    hidden = version.path / ".dense.pt2.Xy12Zw"
    hidden.write_bytes(b"")
    real = os.scandir

    @contextmanager
    def scandir(path: Any) -> Iterator[Any]:
        with real(path) as entries:
            listed = list(entries)
        hidden.unlink(missing_ok=True)
        yield iter(listed)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(ReadError, match="changed while it was read"):
            open_version(version.path)
    assert open_version(version.path).snapshot == version.snapshot
