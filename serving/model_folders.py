"""Finds the folders of a repository that are models."""

from __future__ import annotations

from pathlib import Path

from storage.checkpoint.versions import is_version

CONFIG = "config.pbtxt"


def folders(root: Path) -> list[str]:
    """Returns the names of all folders in a repository that may be models, in order."""
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def is_model(folder: Path) -> bool:
    """Returns whether a folder holds a configuration or a version."""
    return (folder / CONFIG).exists() or any(is_version(entry.name) for entry in folder.iterdir())
