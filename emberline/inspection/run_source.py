"""Reads the tables of a training run out of its commits: the full one, and what the increments on it changed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from emberline.inspection.merge import newest, ranges
from emberline.inspection.source import History, Origin, Piece, TableFacts, TableSource, Waiting
from storage.checkpoint.manifest import file_sha256
from storage.checkpoint.tensors import TensorFile
from storage.errors import CheckpointError, IntegrityError, UnsafeArtifact
from storage.specs import TableSpec
from trainer.checkpoint.commits import STATE, Commit, chain_of
from trainer.checkpoint.tables import table_paths
from trainer.config import TrainConfig
from trainer.publication import lineage_of
from trainer.row_tables import StaticTableConfig, TableConfig
from trainer.trained import CONFIG, read_config, read_run

Arrays = Mapping[str, np.ndarray[Any, Any]]
# Called with the path of each file before its digest is computed.
Checking = Callable[[Path], None]
_FIELDS = {"ids", "rows", "slots", "counts", "stamps", "ticks"}
_WAITING_AT_ONCE = 1 << 19


def is_run(path: Path) -> bool:
    """Returns whether a folder is that of a run, or one of its commits."""
    return (path / CONFIG).is_file() or (path / "checkpoints").is_dir() or (path / STATE).is_file()


def open_run(path: Path, *, verify: bool = True, checking: Checking = lambda _: None) -> Origin:
    """Opens a run at its newest commit, or at the commit whose folder is given.

    verify: compute the digests of the tables' files. Raises NotFound, CheckpointError, IntegrityError.
    """
    if (path / STATE).is_file():
        run, folder = path.absolute().parent.parent, path
        config = read_config(run)
    else:
        run = path
        config, folder = read_run(path)
    chain = chain_of(folder)
    state = chain[-1].state
    if verify:
        _check(chain, checking)
    lineage = lineage_of(state)
    published = lineage.published if lineage is not None else ()
    tables: dict[str, TableSource] = {}
    for table in (part.rows for part in config.row_tables):
        if table.name not in chain[-1].tables:
            raise CheckpointError(f"{folder}: holds no table {table.name!r}; it was saved by another configuration")
        stamps = sorted({entry.stamps.get(table.name, 0) for entry in published})
        tables[table.name] = RunTable(config, table, chain, tuple(stamps))
    title = f"run {run} ({config.model_name}) at {folder.name}: step {state.position.step:,}"
    return Origin(title, "run", str(path), config.spec, tables)


def _check(chain: Sequence[Commit], checking: Checking) -> None:
    for commit in chain:
        for name, digest in commit.files.items():
            file = commit.folder / name
            checking(file)
            if not file.is_file() or file_sha256(file) != digest:
                raise IntegrityError(f"{file}: missing, or not what was saved")


class RunTable(TableSource):
    """A table of a run."""

    def __init__(
        self,
        config: TrainConfig,
        table: TableConfig | StaticTableConfig,
        chain: Sequence[Commit],
        publishes: tuple[int, ...],
    ) -> None:
        self._saved: list[Arrays] = []
        self._files: list[mmap.mmap] = []
        for commit in chain:
            for path in table_paths(table.name, commit.files):
                file = _mapped(commit.folder / path)
                arrays = TensorFile.from_bytes(path, np.frombuffer(file, np.uint8)).arrays
                self._files.append(file)
                if not set(arrays) >= _FIELDS or arrays["rows"].ndim != 2 or arrays["rows"].shape[1] != table.dim:
                    raise CheckpointError(
                        f"{commit.folder}: table {table.name!r} is not one of dim {table.dim}; it was saved by another "
                        "configuration or release"
                    )
                self._saved.append(arrays)
        slots = self._saved[0]["slots"].shape[1] if self._saved else 0
        newest_tick = max((_largest(arrays["ticks"]) for arrays in self._saved), default=0)
        self._release()
        self.facts = TableFacts(
            TableSpec(table.name, table.dim),
            slots=slots,
            optimizer=config.optimizer.sparse.type,
            admit_after=table.admit_after if isinstance(table, TableConfig) else 1,
            history=History(chain[-1].tables[table.name].stamp, newest_tick, publishes),
        )

    @property
    def total(self) -> int:
        """Rows of all commits, those that a later one replaces included."""
        return sum(len(arrays["ids"]) for arrays in self._saved)

    def pieces(self) -> Iterator[Piece]:
        """Yields the rows as of the last commit."""
        ids = [arrays["ids"] for arrays in self._saved]
        removed = [arrays["removed_ids"] for arrays in self._saved]
        for parts in ranges([*ids, *removed], self.facts.piece_rows):
            piece = self._piece(parts[: len(ids)], parts[len(ids) :])
            if piece is not None:
                yield piece
            self._release()

    def _piece(self, rows: Sequence[slice], removed: Sequence[slice]) -> Piece | None:
        there = newest(self._parts("ids", rows))
        gone = newest(self._parts("removed_ids", removed))
        if len(gone.ids) and len(there.ids):
            at = np.minimum(np.searchsorted(gone.ids, there.ids), len(gone.ids) - 1)
            # A commit never removes an id that it has a row of: a later row is a new one.
            there = there.kept((gone.ids[at] != there.ids) | (gone.owners[at] <= there.owners))
        if len(there.ids) == 0:
            return None
        fields = [there.of(self._parts(name, rows)) for name in ("rows", "counts", "slots", "stamps", "ticks")]
        values, counts, slots, stamps, ticks = fields
        return Piece(there.ids, values, counts.astype(np.int64), slots, stamps, ticks)

    def _parts(self, name: str, parts: Sequence[slice]) -> list[np.ndarray[Any, Any]]:
        return [arrays[name][part] for arrays, part in zip(self._saved, parts, strict=True)]

    def waiting(self) -> Iterator[Waiting]:
        """Yields the ids that wait for a row as of the last commit."""
        ids = [arrays["waiting_ids"] for arrays in self._saved]
        for parts in ranges(ids, _WAITING_AT_ONCE):
            found = newest(self._parts("waiting_ids", parts))
            counts = found.of(self._parts("waiting_counts", parts))
            # 0: it has a row since, or was erased.
            yield found.ids[counts > 0], counts[counts > 0].astype(np.int64)
            self._release()

    def _release(self) -> None:
        # The pages that were read count as memory of the process until another process needs them; give them back.
        for file in self._files:
            file.madvise(mmap.MADV_DONTNEED)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise UnsafeArtifact(f"{path}: is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _largest(values: np.ndarray[Any, Any]) -> int:
    return int(values.max()) if len(values) else 0
