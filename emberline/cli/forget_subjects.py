"""Defines what `emberline forget` works on: a run and the repository it is published into, or a repository alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from emberline.cli.objects import copy_of
from storage.objects import is_url

if TYPE_CHECKING:
    from storage.features import FeatureSpec
    from storage.forgetting import Wanted
    from trainer.config import TrainConfig
    from trainer.forgetting import Forgotten


class Subject(Protocol):
    """Is what ids are forgotten in."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def spec(self) -> FeatureSpec:
        """The features of the model."""

    def folders(self) -> list[Path]:
        """Returns the folders of this machine that belong to it, as they are now."""

    def check(self, wanted: Wanted) -> None:
        """Raises ConfigError for a table that is not there, or whose rows several ids share."""

    def forget(self, wanted: Wanted, *, quiet: bool) -> Forgotten:
        """Forgets ids."""

    def version(self) -> int:
        """Returns the number of the newest version."""


class RunSubject:
    """A run, and the repository that it is published into."""

    def __init__(self, run: Path, repository: Path | str) -> None:
        self._run, self._repository = run, repository

    @cached_property
    def _config(self) -> TrainConfig:
        from trainer.trained import read_run

        return read_run(self._run)[0]

    @property
    def name(self) -> str:
        """See Subject."""
        return self._config.model_name

    @property
    def spec(self) -> FeatureSpec:
        """See Subject."""
        return self._config.spec

    def folders(self) -> list[Path]:
        """See Subject. Of a repository in an object store, it is the copy that the trainer keeps."""
        return [self._run, *_published(self._repository, self.name)]

    def check(self, wanted: Wanted) -> None:
        """See Subject."""
        from trainer.forgetting import check_tables

        check_tables(self._config, wanted)

    def forget(self, wanted: Wanted, *, quiet: bool) -> Forgotten:
        """See Subject."""
        from trainer.forgetting import forget
        from trainer.trained import load_trained

        return forget(load_trained(self._run), self._repository, wanted, progress=not quiet, say=_said(quiet))

    def version(self) -> int:
        """See Subject."""
        from trainer.checkpoint import checkpoints, read_commit
        from trainer.publication import lineage_of

        lineage = lineage_of(read_commit(checkpoints(self._run)[-1]).state)
        return 0 if lineage is None else lineage.version


class ModelSubject:
    """A model of a repository that no run of this machine publishes into."""

    def __init__(self, repository: Path | str, name: str) -> None:
        self._repository = repository
        self.name = name

    @cached_property
    def _source(self) -> Path:
        return self._copied()

    @property
    def spec(self) -> FeatureSpec:
        """See Subject."""
        from storage.checkpoint.as_of import find_as_of

        return find_as_of(self._source, verify=False).version.spec

    def folders(self) -> list[Path]:
        """See Subject. Of a repository in an object store, these are the copies on this machine."""
        return list(dict.fromkeys([self._source, *_published(self._repository, self.name)]))

    def check(self, wanted: Wanted) -> None:
        """See Subject."""
        from trainer.rewriting import check_published

        check_published(self._source, wanted)

    def forget(self, wanted: Wanted, *, quiet: bool) -> Forgotten:
        """See Subject."""
        from storage.checkpoint.as_of import find_as_of
        from trainer.publication import is_described
        from trainer.rewriting import forget_published

        if is_described(find_as_of(self._source, verify=False).version.manifest.metadata):
            click.echo(
                f"a training run published {self.name}: forget the ids in it too (emberline forget RUN), or what it "
                "publishes next has them again",
                err=True,
            )
        done = forget_published(self._repository, self.name, self._source, wanted, say=_said(quiet))
        self._copied()  # what has left the object store leaves the copy
        return done

    def version(self) -> int:
        """See Subject."""
        from storage.checkpoint.as_of import find_as_of

        return find_as_of(self._source, verify=False).version.version

    def _copied(self) -> Path:
        if is_url(self._repository):
            return copy_of(f"{str(self._repository).rstrip('/')}/{self.name}")
        return Path(self._repository) / self.name


def _published(repository: Path | str, name: str) -> list[Path]:
    from trainer.publishing.target import Target

    folder = Target.of(repository, name).model_dir
    return [folder] if folder.is_dir() else []


def _said(quiet: bool) -> Callable[[str], None]:
    """Returns what prints steps on standard error, or nothing."""

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    return say
