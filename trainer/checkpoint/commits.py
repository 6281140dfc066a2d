"""Commits on disk: a tree of folders, each full or an increment on its parent, and the code that reads and
checks them.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.checkpoint.manifest import file_sha256
from storage.checkpoint.strict_json import parse_json
from storage.errors import CheckpointError, IntegrityError
from trainer.checkpoint.state import TrainingState

FORMAT = "emberline-training-4"
#: Of a commit in which tables lie in parts, one for each rank; older releases do not read it.
PARTS_FORMAT = "emberline-training-5"
STATE = "state.json"
DENSE = "dense.safetensors"
_MAX_STATE_BYTES = 64 << 20
_NAME = re.compile(r"commit-([0-9]{9,18})")


@dataclass(frozen=True)
class TableStamps:
    """Stamps and counters of one table in a commit."""

    #: The last stamp whose changes are in the commit.
    stamp: int
    #: Erased ids up to this stamp are not remembered.
    forgotten: int
    #: The rule of the optimizer, which says what the values behind a row are.
    optimizer: str
    #: Steps of the optimizer so far.
    steps: int
    #: Ticks and eviction: EmbeddingTable.eviction_state.
    eviction: dict[str, Any]


@dataclass(frozen=True)
class Commit:
    """The content of a commit's state.json."""

    folder: Path
    #: Counts up over the life of the run, also where training goes back.
    number: int
    #: Number of the commit that this one adds to; 0 for a full one.
    parent: int
    #: SHA-256 of the parent's state.json.
    parent_sha256: str
    #: Number of the full commit at the bottom of the chain.
    full: int
    #: Increments from the full commit to this one.
    links: int
    #: Bytes of the full commit.
    full_bytes: int
    #: Bytes of the increments on it.
    increment_bytes: int
    tables: dict[str, TableStamps]
    #: Digest of each file by path.
    files: dict[str, str]
    state: TrainingState
    #: SHA-256 of state.json.
    sha256: str
    #: The ranks that wrote it, each its part of every table.
    ranks: int = 1

    def check_files(self) -> None:
        """Raises IntegrityError for a file that is missing or not what was saved."""
        for path, digest in self.files.items():
            file = self.folder / path
            if not file.is_file() or file_sha256(file) != digest:
                raise IntegrityError(
                    f"{file}: missing, or not what was saved; remove {self.folder} and the commits after it to fall "
                    "back to the one before"
                )


def commit_folder(home: Path, number: int) -> Path:
    """Returns the folder of a commit under OUTPUT/checkpoints."""
    return home / f"commit-{number:09d}"


def checkpoints(output: Path) -> list[Path]:
    """The commits under a training output, oldest first; each can be loaded."""
    home = output / "checkpoints"
    if not home.is_dir():
        return []
    found = [(int(match[1]), entry) for entry in home.iterdir() if (match := _NAME.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found)]


def read_commit(folder: Path) -> Commit:
    """Reads a commit's state.json; its other files are not looked at. Raises CheckpointError."""
    path = folder / STATE
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); remove {folder} to go on without it"
        ) from None
    content = parse_json(text, what=str(path), max_bytes=_MAX_STATE_BYTES)
    if not isinstance(content, dict) or content.get("format") not in (FORMAT, PARTS_FORMAT):
        raise CheckpointError(f"{path}: expected format {FORMAT!r}; the checkpoint was made by another release")
    name = _NAME.fullmatch(folder.name)
    if name is not None and content.get("number") != int(name[1]):
        raise CheckpointError(f"{folder}: is a copy of the commit {content.get('number')}; remove it")
    try:
        return Commit(
            folder=folder,
            tables={name: TableStamps(**entry) for name, entry in content["tables"].items()},
            state=TrainingState.from_json_value(content["state"]),
            sha256=hashlib.sha256(text).hexdigest(),
            ranks=content.get("ranks", 1),
            **{key: content[key] for key in _PLAIN},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {error!r}; the checkpoint was made by another release") from None


def to_json_value(commit: Commit) -> dict[str, Any]:
    """Returns the content of state.json."""
    return {
        "format": FORMAT if commit.ranks == 1 else PARTS_FORMAT,
        "state": commit.state.to_json_value(),
        "tables": {name: vars(entry) for name, entry in commit.tables.items()},
        **{key: getattr(commit, key) for key in _PLAIN},
        **({} if commit.ranks == 1 else {"ranks": commit.ranks}),
    }


_PLAIN = ("number", "parent", "parent_sha256", "full", "links", "full_bytes", "increment_bytes", "files")


def chain_of(folder: Path) -> list[Commit]:
    """Returns a commit and all that it stands on, the full one first. Raises IntegrityError when a file was changed."""
    commit = read_commit(folder)
    chain = [commit]
    while commit.parent:
        below = commit_folder(folder.parent, commit.parent)
        if not below.is_dir():
            raise IntegrityError(f"{commit.folder}: stands on {below}, which is not there; remove it to fall back")
        parent = read_commit(below)
        if parent.sha256 != commit.parent_sha256 or parent.number >= commit.number:
            raise IntegrityError(f"{commit.folder}: stands on another {below.name} than the one that is there")
        commit = parent
        chain.append(commit)
    return chain[::-1]


def read_state(folder: Path) -> TrainingState:
    """Returns the state of a commit after checking every file it needs. Raises IntegrityError, CheckpointError."""
    chain = chain_of(folder)
    for commit in chain:
        commit.check_files()
    return chain[-1].state
