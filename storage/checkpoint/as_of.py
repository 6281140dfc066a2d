"""Finds the version and the deltas that make a snapshot, in a model's folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from storage.checkpoint import PublishedDelta, PublishedVersion, list_deltas, open_delta, open_version
from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.checkpoint.row_streams import RowStream, published_rows
from storage.checkpoint.versions import is_version
from storage.errors import InvalidInput, NotFound
from storage.paths import local_path

if TYPE_CHECKING:
    import torch

LATEST = "latest"
_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"([1-9][0-9]{0,17})(?:\.(0|[1-9][0-9]{0,17}))?")


@dataclass(frozen=True)
class AsOf:
    """A snapshot: a version, and the deltas on top of it, oldest first."""

    version: PublishedVersion
    deltas: tuple[PublishedDelta, ...] = ()

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return self.deltas[-1].snapshot if self.deltas else self.version.snapshot

    @property
    def sequence(self) -> int:
        """Sequence of the last delta; 0 for the version itself."""
        return self.deltas[-1].sequence if self.deltas else 0

    @property
    def published_unix_ms(self) -> int:
        """Time when the trainer published it."""
        manifest = self.version.manifest
        return self.deltas[-1].manifest.created_unix_ms if self.deltas else manifest.published_unix_ms

    def rows(self, table: str) -> RowStream:
        """Returns the rows of a table in this snapshot, as a stream in ascending order of ids. Raises NotFound."""
        return published_rows(self.version, self.deltas, table)

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the dense weights of this snapshot, put together from the last full copy of them on."""
        known: dict[str, torch.Tensor] | None = None
        full = next((place for place in reversed(range(len(self.deltas))) if not self.deltas[place].dense_against), -1)
        weights = self.version.weights() if full < 0 else self.deltas[full].weights()
        at = self.version.snapshot if full < 0 else self.deltas[full].snapshot
        for delta in self.deltas[full + 1 :]:
            if delta.dense_against != at:
                known = known or self.version.weights()
            weights, at = delta.weights(weights if delta.dense_against == at else known), delta.snapshot
        return weights

    def __str__(self) -> str:
        return f"{self.version.version}.{self.sequence} ({self.id})"


def find_as_of(model: Path, text: str = LATEST, *, verify: bool = True) -> AsOf:
    """Finds the snapshot that `text` names.

    model: a model's folder in a repository. text: "latest" of the newest version; VERSION.SEQUENCE, or VERSION for its
    latest; an id; or a time such as 2026-11-22T10:00 (UTC unless it says otherwise): the last that was published by
    then. verify: compute every digest of its files now; without it each file is checked when it is read. Raises
    NotFound saying what there is, InvalidInput for a text that is none of these.
    """
    model = local_path(model, "model")
    wanted = _wanted(text)
    numbers = _versions(model)
    chosen: AsOf | None = None
    newest: list[str] = []
    for number in numbers:
        if isinstance(wanted, tuple) and wanted[0] != number:
            continue
        found = list(_snapshots(open_version(model / str(number), verify=False)))
        newest.append(f"{number}.0 to {number}.{found[-1].sequence}" if len(found) > 1 else f"{number}.0")
        chosen = _choose(found, wanted, chosen)
        if chosen is not None and not isinstance(wanted, datetime):
            break
    if chosen is None:
        there = ", ".join(newest) if newest else f"the versions {', '.join(map(str, reversed(numbers)))}"
        raise NotFound(f"{model}: no snapshot {text!r} that all files are there for; there are {there}")
    version = open_version(chosen.version.path, verify=verify)
    return AsOf(version, tuple(open_delta(delta.path, verify=verify) for delta in chosen.deltas))


def newest_of(folder: Path) -> AsOf:
    """Returns the newest snapshot of one version's folder, wherever it lies, and checks every digest of its files."""
    *_, newest = _snapshots(open_version(folder))
    return AsOf(newest.version, tuple(open_delta(delta.path) for delta in newest.deltas))


def _versions(model: Path) -> list[int]:
    """Returns the numbers of the versions, newest first. Raises NotFound."""
    if not model.is_dir():
        raise NotFound(f"{model} is not a model's folder")
    numbers = sorted((int(entry.name) for entry in model.iterdir() if is_version(entry.name)), reverse=True)
    if not numbers:
        folders = [entry for entry in sorted(model.iterdir()) if entry.is_dir()]
        models = [entry.name for entry in folders if any(is_version(each.name) for each in entry.iterdir())]
        hint = f"; is it a repository? Its models are {', '.join(models[:20])}" if models else ""
        raise NotFound(f"{model} holds no version; a model's folder holds folders called 1, 2, ...{hint}")
    return numbers


def _wanted(text: str) -> str | tuple[int, int | None] | datetime:
    if text == LATEST or _ID.fullmatch(text):
        return text
    name = _NAME.fullmatch(text)
    if name is not None:
        return int(name[1]), None if name[2] is None else int(name[2])
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"a snapshot is VERSION.SEQUENCE, its id, '{LATEST}' or a time such as 2026-11-22T10:00, got {text[:60]!r}",
            field="as_of",
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _choose(found: list[AsOf], wanted: str | tuple[int, int | None] | datetime, before: AsOf | None) -> AsOf | None:
    if isinstance(wanted, datetime):
        until_ms = wanted.timestamp() * 1000
        timely = [each for each in found if each.published_unix_ms <= until_ms]
        return max([*timely, *([before] if before else [])], key=lambda each: each.published_unix_ms, default=None)
    if wanted == LATEST or (isinstance(wanted, tuple) and wanted[1] is None):
        return found[-1]
    for each in found:
        if each.id == wanted or (isinstance(wanted, tuple) and each.sequence == wanted[1]):
            return each
    return None


def _snapshots(version: PublishedVersion) -> Iterator[AsOf]:
    """Yields the version's snapshots that can be made of what is there, by sequence, each by the fewest deltas."""
    known = {version.snapshot: AsOf(version)}
    yield known[version.snapshot]
    for sequence in list_deltas(version.path):
        delta = open_delta(version.path / DELTAS / sequence_name(sequence), verify=False)
        bases = [known[snapshot] for snapshot in delta.applies_to if snapshot in known]
        if bases:
            shortest = min(bases, key=lambda base: len(base.deltas))
            known[delta.snapshot] = AsOf(version, (*shortest.deltas, delta))
            yield known[delta.snapshot]
