"""Finds what a path names: a run, a model of a repository, or one of its versions."""

from __future__ import annotations

from pathlib import Path

from storage.checkpoint.as_of import LATEST, AsOf, find_as_of, newest_of
from storage.checkpoint.signed import MANIFEST
from storage.checkpoint.versions import is_version
from storage.errors import ConfigError
from storage.paths import local_path
from trainer.trained import CONFIG
from trainer.warm_start.run_source import read_run_source
from trainer.warm_start.source import Source
from trainer.warm_start.version_source import read_version_source


def open_source(given: Path | str) -> Source:
    """Opens a source and checks the digests of all its files.

    given: the output folder of a run; or REPOSITORY/MODEL for the newest snapshot of its newest version, deltas
    included; or behind it /VERSION, or another text that names a snapshot (/VERSION.SEQUENCE, an id or a time). Raises
    ConfigError for anything else, NotFound, CheckpointError for one that is unfinished or of another format.
    """
    path = local_path(given, "start_from")
    if not path.exists() and _holds_versions(path.parent):
        return _version(find_as_of(path.parent, path.name), path.parent)
    if not path.exists():
        raise ConfigError(f"{path}: is not there; {_EXPECTED}", field="start_from")
    if not path.is_dir():
        raise ConfigError(f"{path}: is no folder; {_EXPECTED}", field="start_from")
    if (path / CONFIG).is_file() or (path / "checkpoints").is_dir():
        return read_run_source(path)
    if (path / MANIFEST).is_file():
        if is_version(path.name):
            return _version(find_as_of(path.parent, path.name), path.parent)
        return _version(newest_of(path), path)
    if _holds_versions(path):
        return _version(find_as_of(path, LATEST), path)
    models = sorted(entry.name for entry in path.iterdir() if _holds_versions(entry))
    hint = f"; it is a repository, with the models {', '.join(models[:20])}" if models else ""
    raise ConfigError(f"{path}: is neither a run nor a model{hint}; {_EXPECTED}", field="start_from")


_EXPECTED = "expected the output folder of a run, or REPOSITORY/MODEL, or REPOSITORY/MODEL/VERSION"


def _holds_versions(path: Path) -> bool:
    return path.is_dir() and any(is_version(entry.name) for entry in path.iterdir())


def _version(snapshot: AsOf, model: Path) -> Source:
    return read_version_source(snapshot, f"the snapshot {snapshot.version.version}.{snapshot.sequence} of {model}")
