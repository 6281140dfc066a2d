"""Keeps deltas and versions in the store by hard links, so that the repository may delete them.

Where links are not possible, deltas are copied; versions are not, because they may be as large as the disk. Each
snapshot has one folder, which is complete or absent. Its digests are checked again whenever it is opened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from storage.checkpoint.deltas import DELTAS
from storage.checkpoint.install import sync_directory
from storage.errors import StoreError

KEPT_DELTAS = "deltas"
KEPT_VERSIONS = "versions"
_NEW = ".new"


class NoLinks(Exception):  # noqa: N818 - no error: a store on another file system is as good
    """A folder cannot be kept by links alone."""


def keep(source: Path, kept: Path) -> Path:
    """Keeps the files of the folder `source` as the folder `kept`, on the disk when this returns. Raises StoreError.

    A folder that is there already is replaced: nothing proves that it is the same.
    """
    return _keep(source, kept, _link_or_copy)


def keep_version(source: Path, kept: Path) -> Path:
    """Keeps a version without its deltas, by links alone. Raises NoLinks where links are not possible, StoreError."""
    return _keep(source, kept, _link, ignored=DELTAS)


def _keep(source: Path, kept: Path, put: Callable[[Path, Path], None], *, ignored: str = "") -> Path:
    temporary = kept.with_name(f".{kept.name}{_NEW}")
    if not source.is_dir():
        raise FileNotFoundError(f"{source} is not there any more")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for place, folders, names in os.walk(source, onerror=_raise):
            folders[:] = [name for name in folders if place != str(source) or name != ignored]
            target = temporary / Path(place).relative_to(source)
            for name in folders:
                (target / name).mkdir()
            for name in names:
                put(Path(place) / name, target / name)
            sync_directory(target)
        shutil.rmtree(kept, ignore_errors=True)
        os.rename(temporary, kept)
        sync_directory(kept.parent)
    except (FileNotFoundError, NoLinks):  # the repository has dropped it meanwhile
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise StoreError(f"keeping {source} in {kept.parent}: {error}") from error
    return kept


def kept_folder(store: Path, snapshot: str) -> Path:
    """Returns the folder in which the delta that leads to a snapshot is kept."""
    return store / KEPT_DELTAS / snapshot


def kept_version(store: Path, snapshot: str) -> Path:
    """Returns the folder in which the version that is a snapshot is kept."""
    return store / KEPT_VERSIONS / snapshot


def collect(store: Path, wanted: Iterable[str], kind: str = KEPT_DELTAS) -> None:
    """Deletes what is kept for snapshots that are not `wanted`; a wanted one may be in the middle of being linked."""
    folder, names = store / kind, set(wanted)
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        gone = [entry.path for entry in entries if _snapshot(entry.name) not in names]
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)


def kept_in(store: Path) -> list[str]:
    """Returns the snapshots of which files are kept, versions and deltas."""
    folders = (store / kind for kind in (KEPT_VERSIONS, KEPT_DELTAS))
    return sorted({_snapshot(entry.name) for folder in folders if folder.is_dir() for entry in folder.iterdir()})


def _raise(error: OSError) -> None:
    """Raises the error: without it, os.walk takes a folder that cannot be listed for an empty one."""
    raise error


def _snapshot(name: str) -> str:
    """Returns the snapshot that a folder is kept for, complete or not."""
    return name[1:].removesuffix(_NEW) if name.startswith(".") else name


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        _link(source, target)
    except NoLinks:
        shutil.copyfile(source, target, follow_symlinks=False)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError as error:  # another file system, too many links, or one without links
        raise NoLinks(f"{source}: {error.strerror}") from error
