"""Reads the tables of a training run out of its commits: the full one, and what the increments on it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from emberline.inspection.merge import gather, newest, ranges
from emberline.inspection.source import History, Origin, Piece, TableFacts, TableSource, Waiting
from storage.checkpoint.manifest import file_sha256
from storage.checkpoint.tensors import TensorFile
from storage.errors import CheckpointError, IntegrityError
from storage.specs import TableSpec
from trainer.checkpoint.commits import STATE, Commit, chain_of
from trainer.checkpoint.tables import table_path
from trainer.config import TableConfig, TrainConfig
from trainer.publication import lineage_of
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
    for table in config.tables:
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
        self, config: TrainConfig, table: TableConfig, chain: Sequence[Commit], publishes: tuple[int, ...]
    ) -> None:
        self._saved: list[Arrays] = []
        for commit in chain:
            if table_path(table.name) in commit.files:
                arrays = TensorFile.open(commit.folder / table_path(table.name)).arrays
                if not _FIELDS <= set(arrays) or arrays["rows"].ndim != 2 or arrays["rows"].shape[1] != table.dim:
                    raise CheckpointError(
                        f"{commit.folder}: table {table.name!r} is not one of dim {table.dim}; it was saved by another "
                        "configuration or release"
                    )
                self._saved.append(arrays)
        slots = self._saved[0]["slots"].shape[1] if self._saved else 0
        newest_tick = max((_largest(arrays["ticks"]) for arrays in self._saved), default=0)
        self.facts = TableFacts(
            TableSpec(table.name, table.dim),
            slots=slots,
            optimizer=config.optimizer.sparse.type,
            admit_after=table.admit_after,
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
        # All commits together give one piece: what each may give is bounded by their number.
        most = max(64, self.facts.piece_rows // max(1, len(ids)))
        for parts in ranges([*ids, *removed], most):
            piece = self._piece(parts[: len(ids)], parts[len(ids) :])
            if piece is not None:
                yield piece

    def _piece(self, rows: Sequence[slice], removed: Sequence[slice]) -> Piece | None:
        ids, owners, places = newest([arrays["ids"][part] for arrays, part in zip(self._saved, rows, strict=True)])
        gone, erased, _ = newest(
            [arrays["removed_ids"][part] for arrays, part in zip(self._saved, removed, strict=True)]
        )
        if len(gone) and len(ids):
            at = np.minimum(np.searchsorted(gone, ids), len(gone) - 1)
            # A commit never removes an id that it has a row of: a later row is a new one.
            kept = (gone[at] != ids) | (erased[at] <= owners)
            ids, owners, places = ids[kept], owners[kept], places[kept]
        if len(ids) == 0:
            return None

        def field(name: str) -> Any:
            return gather([arrays[name][part] for arrays, part in zip(self._saved, rows, strict=True)], owners, places)

        return Piece(
            ids, field("rows"), field("counts").astype(np.int64), field("slots"), field("stamps"), field("ticks")
        )

    def waiting(self) -> Iterator[Waiting]:
        """Yields the ids that wait for a row as of the last commit."""
        ids = [arrays["waiting_ids"] for arrays in self._saved]
        for parts in ranges(ids, max(64, _WAITING_AT_ONCE // max(1, len(ids)))):
            found, owners, places = newest([each[part] for each, part in zip(ids, parts, strict=True)])
            counts = gather(
                [arrays["waiting_counts"][part] for arrays, part in zip(self._saved, parts, strict=True)],
                owners,
                places,
            )
            # 0: it has a row since, or was erased.
            yield found[counts > 0], counts[counts > 0].astype(np.int64)


def _largest(values: np.ndarray[Any, Any]) -> int:
    return int(values.max()) if len(values) else 0
