"""Checks the folders of a repository and of its stores before anything is loaded."""

from __future__ import annotations

from serving.config import ServerConfig
from storage.errors import ConfigError, NotFound


def check_places(config: ServerConfig) -> None:
    """Raises NotFound where the repository is no folder, ConfigError where the stores cannot be in theirs."""
    root = config.model_repository
    if not root.is_dir():
        raise NotFound(f"model repository {str(root)!r} is not a folder; publish a model there first, or name another")
    if config.store_dir.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"store {str(config.store_dir)!r} lies inside the model repository; choose a folder outside",
            field="store",
        )
    there = next(place for place in (config.store_dir, *config.store_dir.parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"store {str(config.store_dir)!r}: {str(there)!r} is not a folder", field="store")
