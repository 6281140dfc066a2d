"""Reads the tables of a published snapshot: a version with the deltas on top of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from emberline.inspection.source import Origin, Piece, TableFacts, TableSource
from serving.scoring import AsOf, find_as_of, snapshot_rows
from storage.checkpoint.versions import is_version
from storage.errors import NotFound
from storage.specs import TableSpec
from storage.tiers.planning.use_codes import uses_of_codes


def open_published(path: Path, *, verify: bool = True) -> Origin:
    """Opens a model's newest snapshot, or the newest one of a version. path: REPOSITORY/MODEL, or one of its versions.

    verify: compute all digests first; otherwise each file is checked when it is read. Raises NotFound, CheckpointError.
    """
    resolved = path.absolute()
    if not path.is_dir():
        raise NotFound(f"{path} is not a folder of a run, a model or a version")
    if is_version(resolved.name):
        as_of = find_as_of(resolved.parent, resolved.name, verify=verify)
    elif (resolved / "manifest.json").is_file():
        raise NotFound(f"{path}: tables are read from a model's folder or one of its versions, called 1, 2, ...")
    elif not any(is_version(entry.name) for entry in path.iterdir()):
        raise NotFound(_neither(path))
    else:
        as_of = find_as_of(path, verify=verify)
    tables = {spec.name: PublishedTable(as_of, spec) for spec in as_of.version.tables}
    title = f"snapshot {as_of} of {path}"
    return Origin(title, "published", str(path), as_of.version.spec, dict(tables))


def _neither(path: Path) -> str:
    folders = [entry for entry in sorted(path.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    models = [entry.name for entry in folders if any(is_version(each.name) for each in entry.iterdir())]
    if models:
        return f"{path} is a repository; give one of its models: {', '.join(models[:20])}"
    return (
        f"{path} is neither the output folder of a training (config.json and checkpoints) nor a model's folder in a "
        "repository (folders called 1, 2, ...)"
    )


class PublishedTable(TableSource):
    """A table of a snapshot. Counts are those of the published byte, rounded down."""

    def __init__(self, as_of: AsOf, spec: TableSpec) -> None:
        self._as_of = as_of
        self.facts = TableFacts(spec, approximate=True)

    @property
    def total(self) -> int:
        """Rows of the version; deltas may have added or removed some."""
        return self.facts.spec.rows

    def pieces(self) -> Iterator[Piece]:
        """Yields the rows as they are served."""
        uses, step = uses_of_codes().astype(np.int64), self.facts.piece_rows
        for shard in snapshot_rows(self._as_of, self.facts.name):
            for start in range(0, len(shard.ids), step):
                part = shard.take(slice(start, start + step))
                yield Piece(part.ids, part.rows, uses[part.freq])
