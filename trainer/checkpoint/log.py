"""The log of a run's commits: writes each commit on top of an earlier one and removes those no longer needed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint.install import sync_directory
from storage.checkpoint.strict_json import canonical_json
from storage.checkpoint.tensors import write_bytes, write_tensors
from storage.errors import CheckpointError, ConfigError, NotFound
from trainer.checkpoint.commits import (
    DENSE,
    STATE,
    Commit,
    TableStamps,
    checkpoints,
    commit_folder,
    read_commit,
    to_json_value,
)
from trainer.checkpoint.state import TrainingState
from trainer.checkpoint.tables import Arrays, changed_bytes, changed_table, table_path, whole_table
from trainer.embedding import EmbeddingTable
from trainer.ranks import Ranks

MAX_LINKS = 64
# Increments may take up to this share of the full commit's bytes before another full one is made.
MAX_INCREMENT_SHARE = 0.5
# Full commits, each with its increments, that always stay: the one that grows, and the one before.
KEEP_CHAINS = 2
_LOCK = ".lock"
# A shared file system may show a new file that late.
_SHOWN_AFTER_S = 10.0
_UNFINISHED = (".writing-", ".dropped-")

Dense = tuple[nn.Module, torch.optim.Optimizer]


@dataclass
class _Parts:
    """The tables of a commit: stamps by table, digests by path, and the bytes of the files."""

    stamps: dict[str, TableStamps]
    files: dict[str, str]
    size: int


class CommitLog:
    """Writes the commits under OUTPUT/checkpoints. A context manager; one process at a time holds a run's log.

    keep_snapshots: the states of this many of the newest published snapshots stay, beside the newest two chains.
    ranks: those that train the run together, of which the first holds the log. Each writes its part of the tables, in a
    folder that all of them see. Raises ConfigError when another process holds the log.
    """

    def __init__(self, output: Path, *, keep_snapshots: int = 4, ranks: Ranks | None = None) -> None:
        self._output = output
        self._ranks = ranks or Ranks()
        self._keep_snapshots = keep_snapshots
        self._home = output / "checkpoints"
        self._commits: dict[int, Commit] = {}
        self._base: Commit | None = None
        self._lock: int | None = None
        self._token = ""

    def __enter__(self) -> CommitLog:
        with self._ranks.first_before_others():
            if self._ranks.is_first:
                self._take_lock()
            try:
                self._open()
            except BaseException:
                self.__exit__(None, None, None)
                raise
        self._check_shared()
        return self

    def _take_lock(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.__exit__(None, None, None)
            raise ConfigError(
                f"{self._output}: another process trains or publishes this run; wait until it is done", field="output"
            ) from None
        self._token = secrets.token_hex(16)
        os.ftruncate(self._lock, 0)
        os.write(self._lock, self._token.encode())

    def _check_shared(self) -> None:
        """Raises ConfigError at all ranks where one does not see the folder of the first rank."""
        if not self._ranks.are_several:
            return
        token = self._ranks.from_first(self._token)
        deadline, sees = time.monotonic() + _SHOWN_AFTER_S, False
        while not sees and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                sees = (self._home / _LOCK).read_text() == token
            if not sees:
                time.sleep(0.05)
        of_ranks = self._ranks.gather((sees, socket.gethostname()))
        blind = [f"rank {rank} ({host})" for rank, (sees, host) in enumerate(of_ranks) if not sees]
        if blind:
            self.__exit__(None, None, None)
            raise ConfigError(
                f"{self._output}: {blind[0]} does not see there what rank 0 writes; the output must be a folder that "
                "all ranks see, on several machines of a shared file system",
                field="output",
            )

    def _open(self) -> None:
        for entry in self._home.iterdir() if self._ranks.is_first else ():
            if entry.name.startswith(_UNFINISHED):
                shutil.rmtree(entry, ignore_errors=True)
        folders = checkpoints(self._output)
        self._commits = {commit.number: commit for commit in map(_slim, map(read_commit, folders[:-1]))}
        if folders:
            self._base = read_commit(folders[-1])
            self._commits[self._base.number] = self._base

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            # A forked child, such as a data loader's worker, still has the descriptor, and so the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    @property
    def newest(self) -> Commit | None:
        """The commit that was saved last."""
        return self._commits[max(self._commits)] if self._commits else None

    @property
    def base(self) -> Commit | None:
        """The commit that the next one adds to: the newest one, or that of `go_on_from`."""
        return self._base

    def find(self, snapshot: str) -> Commit:
        """The newest commit whose state was published as this snapshot (id). Raises NotFound when none was kept."""
        for number in sorted(self._commits, reverse=True):
            if snapshot in self._commits[number].state.snapshots:
                return self._commits[number]
        raise NotFound(
            f"snapshot {snapshot}: the training state that it was made from was not kept; go back to a newer snapshot, "
            "or publish this state as a delta of it (emberline publish --from)"
        )

    def at_epoch(self, epoch: int) -> Commit | None:
        """The newest commit of a training's end of an epoch, 1 for the first; None when none was kept."""
        found = (
            number
            for number, commit in self._commits.items()
            if (commit.state.position.epoch, commit.state.position.batch) == (epoch, 0) and commit.state.update is None
        )
        number = max(found, default=0)
        return self._commits[number] if number else None

    def go_on_from(self, commit: Commit) -> None:
        """Makes the next commit add to this one, whose content the tables now have."""
        self._base = commit

    def save(
        self,
        state: TrainingState,
        tables: Mapping[str, EmbeddingTable],
        dense: Dense | None = None,
        *,
        alone: bool = False,
    ) -> Commit:
        """Writes a commit: full, or what changed since the one that training stands on.

        alone: it is full, and every other commit is removed when it is on the disk. tables: their stamps are advanced.
        dense: model and optimizer; None when no step was made since. A commit without them also leaves torch's
        generator as it was saved. When save returns, the commit is on the disk.
        """
        base = self._base
        folder = self._ranks.from_first(self._home / f".writing-{secrets.token_hex(8)}")
        target: Path | None = None
        try:
            with self._all_or_none():
                (folder / "tables").mkdir(parents=True, exist_ok=True)
            full = alone or base is None or self._full_is_due(base, tables)
            parts = self._write_tables(folder, tables, None if full else base)
            commit: Commit | None = None
            with self._all_or_none():
                if self._ranks.is_first:
                    commit = self._write(folder, state, parts, dense, None if full else base)
                    target = commit_folder(self._home, commit.number)
                    os.rename(folder, target)
                    sync_directory(self._home)
            commit, target = self._ranks.from_first((commit, target))
            assert commit is not None
            assert target is not None
        finally:
            if self._ranks.is_first:
                shutil.rmtree(folder, ignore_errors=True)
        commit = replace(commit, folder=target)
        if (before := self.newest) is not None:
            self._commits[before.number] = _slim(before)
        self._commits[commit.number] = self._base = commit
        for name, table in tables.items():
            table.saved(commit.tables[name].stamp)
        if self._ranks.is_first:
            self._drop_old(alone=alone)
        return commit

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Raises CheckpointError at all ranks where the block fails to write at one of them."""
        failed: OSError | None = None
        try:
            yield
        except OSError as error:
            failed = error
        said = [text for text in self._ranks.gather(None if failed is None else str(failed)) if text is not None]
        if said:
            kept = "" if self._base is None else "; the last one stays; make room, then resume"
            raise CheckpointError(
                f"{self._home}: the training checkpoint could not be written: {said[0]}{kept}"
            ) from failed

    def _full_is_due(self, base: Commit, tables: Mapping[str, EmbeddingTable]) -> bool:
        if base.links >= MAX_LINKS or set(base.tables) != set(tables) or base.ranks != self._ranks.size:
            return True
        changed = [changed_bytes(table, base.tables[name].stamp) for name, table in tables.items()]
        own = None if None in changed else sum(each or 0 for each in changed)
        of_ranks = self._ranks.gather(own)
        if None in of_ranks:
            return True
        return base.increment_bytes + sum(each or 0 for each in of_ranks) > MAX_INCREMENT_SHARE * base.full_bytes

    def _write_tables(self, folder: Path, tables: Mapping[str, EmbeddingTable], base: Commit | None) -> _Parts:
        """Writes what each rank has of the tables; returns what all ranks wrote."""
        ranks, own = self._ranks, _Parts({}, {}, 0)
        with self._all_or_none():
            for name, table in tables.items():
                own.stamps[name] = TableStamps(
                    table.advance(), table.forgotten, table.optimizer, table.steps, table.eviction_state()
                )
                arrays = whole_table(table) if base is None else changed_table(table, base.tables[name].stamp)
                if arrays is not None:
                    path = table_path(name, ranks.rank, ranks.size)
                    (folder / path).parent.mkdir(exist_ok=True)
                    written = write_tensors(folder / path, arrays)
                    if ranks.are_several:
                        sync_directory((folder / path).parent)
                    own.files[path] = written.sha256
                    own.size += written.size
        parts = ranks.gather(own)
        if any(each.stamps != own.stamps for each in parts):
            raise CheckpointError(f"{self._home}: the tables of the ranks differ in steps; resume from the last commit")
        return _Parts(
            own.stamps,
            {path: sha for each in parts for path, sha in each.files.items()},
            sum(each.size for each in parts),
        )

    def _write(
        self,
        folder: Path,
        state: TrainingState,
        parts: _Parts,
        dense: Dense | None,
        base: Commit | None,
    ) -> Commit:
        """Writes one commit around the tables. base: the commit it adds to, None for a full one."""
        files, size, stamps = dict(parts.files), parts.size, parts.stamps
        if dense is not None:
            written = write_tensors(folder / DENSE, _dense_arrays(*dense))
            files[DENSE] = written.sha256
            size += written.size
        elif base is None:
            size += self._carry_dense(folder, files)
        number = max(self._commits, default=0) + 1
        commit = Commit(
            folder=folder,
            number=number,
            parent=0 if base is None else base.number,
            parent_sha256="" if base is None else base.sha256,
            full=number if base is None else base.full,
            links=0 if base is None else base.links + 1,
            full_bytes=size if base is None else base.full_bytes,
            increment_bytes=0 if base is None else base.increment_bytes + size,
            tables=stamps,
            files=files,
            state=state,
            sha256="",
            ranks=self._ranks.size,
        )
        text = canonical_json(to_json_value(commit))
        write_bytes(folder / STATE, text)
        sync_directory(folder / "tables")
        sync_directory(folder)
        return replace(commit, sha256=hashlib.sha256(text).hexdigest())

    def _carry_dense(self, folder: Path, files: dict[str, str]) -> int:
        """Takes the dense weights from the base, for a full commit without a step since it. Returns their bytes."""
        commit = self._base
        while commit is not None:
            if DENSE in commit.files:
                shutil.copyfile(commit.folder / DENSE, folder / DENSE)
                with (folder / DENSE).open("rb") as file:
                    os.fsync(file.fileno())
                files[DENSE] = commit.files[DENSE]
                return (folder / DENSE).stat().st_size
            commit = self._commits.get(commit.parent)
        raise CheckpointError(f"{self._home}: the first commit of a run needs the dense weights")

    def _drop_old(self, *, alone: bool) -> None:
        newest_first = sorted(self._commits, reverse=True)
        kept = self._kept(newest_first) if not alone else {newest_first[0]}
        # The newest go first, so that whatever a crash leaves still stands on something.
        for number in newest_first:
            commit = self._commits[number]
            if commit.full not in kept:
                dropped = self._home / f".dropped-{secrets.token_hex(8)}"
                try:
                    os.rename(commit.folder, dropped)
                except OSError:
                    return  # tried again at the next commit
                shutil.rmtree(dropped, ignore_errors=True)
                del self._commits[number]

    def _kept(self, newest_first: list[int]) -> set[int]:
        """Returns the numbers of the full commits whose chains stay."""
        kept = set(list(dict.fromkeys(self._commits[number].full for number in newest_first))[:KEEP_CHAINS])
        published = [number for number in newest_first if self._commits[number].state.snapshots]
        kept.update(self._commits[number].full for number in published[: self._keep_snapshots])
        newest = self._commits[newest_first[0]].state
        best = self.at_epoch(newest.best_epoch) if newest.best_epoch and not newest.stopped else None
        if best is not None:
            kept.add(best.full)
        return kept


def _slim(commit: Commit) -> Commit:
    """Drops the history of snapshots and the settings, which are long and needed of the newest commit only."""
    return replace(commit, state=replace(commit.state, publishing=None, history=[], settings={}))


def _dense_arrays(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    arrays: Arrays = {"random": torch.get_rng_state().numpy()}
    arrays.update({f"model.{name}": _array(value) for name, value in model.state_dict().items()})
    for index, values in optimizer.state_dict()["state"].items():
        arrays.update({f"optimizer.{index}.{name}": _array(value) for name, value in values.items()})
    return arrays


def _array(value: Any) -> np.ndarray[Any, Any]:
    tensor = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensor.detach().cpu().contiguous().numpy()  # numpy's own ascontiguousarray would give a scalar a dimension
