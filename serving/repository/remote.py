"""Follows a repository in an object store into the folder that the server reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from serving.config import ServerConfig
from serving.model_config.pbtxt import read_model_config, read_proto
from storage.errors import ConfigError, ReadError
from storage.objects.follower import UNWATCHED, Watch
from storage.objects.mirror import RepositoryMirror


def repository_mirror(config: ServerConfig, watch: Watch = UNWATCHED) -> RepositoryMirror | None:
    """Returns the mirror of a server's repository, not started; None for a repository of this machine."""
    if config.repository_url is None:
        return None
    return RepositoryMirror(
        config.repository_url,
        config.model_repository,
        models=config.models,
        poll_s=min(config.poll_s, 1.0),
        bytes_per_s=config.mirror_bytes_per_s,
        choose=chosen_versions,
        side_files=label_files,
        watch=watch,
    )


def chosen_versions(folder: Path, numbers: Sequence[int]) -> Sequence[int]:
    """Returns the versions that a model's policy asks for; the newest one when its configuration is wrong."""
    with suppress(ConfigError, ReadError, OSError):
        return read_model_config(folder).choose_versions(numbers)
    return numbers[-1:]


def label_files(folder: Path) -> Sequence[str]:
    """Returns the names of the files of labels that a model's configuration refers to."""
    try:
        names = {str(output.label_filename) for output in read_proto(folder).output}
    except (ConfigError, OSError):
        return ()
    return sorted(name for name in names if name and Path(name).name == name and not name.startswith("."))
