"""Remembers the blocks of files, so that a run that is resumed need not read whole files to find them again.

Compressed text lies there too while a run needs it, in a form that is read in any order.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

from storage.data.compressed import CompressedPlace
from storage.data.files import DataFile
from storage.data.formats import SEARCHED, Block
from storage.data.options import DataOptions

# Text is cut differently by these options.
_OF_BLOCKS = ("header", "columns", "quote", "newlines_in_values", "block_rows")
_FILES_AT_MOST = 10_000


class BlockIndex:
    """The blocks of files, in a folder of JSON files. What cannot be read or written there is found again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, file: DataFile, options: DataOptions) -> tuple[Block, ...] | None:
        """Returns the blocks of a file that has not changed; None when they are not known."""
        try:
            content = json.loads(self._path(file, options).read_bytes())
            return tuple(Block(*map(int, entry)) for entry in content["blocks"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def in_any_order(self, file: DataFile) -> DataFile:
        """Returns a file of compressed text with the place of its copy; any other file as it is."""
        if not isinstance(file.place, CompressedPlace):
            return file
        changed = uuid.uuid4().hex if file.changed_ns is None else file.changed_ns
        key = _digest([file.path, file.size, changed])
        return replace(file, place=replace(file.place, copy=self._folder / f"{key}.copy"))

    def remove_copies(self) -> None:
        """Removes the copies of compressed text, which the next run over it makes again."""
        for path in (*self._folder.glob("*.copy"), *self._folder.glob("*.copy.part*")):
            path.unlink(missing_ok=True)

    def insert(self, file: DataFile, options: DataOptions, blocks: Sequence[Block]) -> None:
        """Keeps the blocks of a file whose format has to be searched for them."""
        if file.format not in SEARCHED or file.changed_ns is None:
            return
        path = self._path(file, options)
        unfinished = path.with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps({"file": file.path, "blocks": [astuple(block) for block in blocks]}))
            os.replace(unfinished, path)
            self._forget()
        except OSError:  # a full disk stops the training where it matters, at its checkpoints
            unfinished.unlink(missing_ok=True)

    def _path(self, file: DataFile, options: DataOptions) -> Path:
        how = [getattr(options, name) for name in _OF_BLOCKS]
        key = _digest([file.path, file.format, file.size, file.changed_ns, how])
        return self._folder / f"{key}.json"

    def _forget(self) -> None:
        kept = list(self._folder.glob("*.json"))
        if len(kept) > _FILES_AT_MOST:
            kept.sort(key=lambda path: path.stat().st_mtime)
            for path in kept[: len(kept) - _FILES_AT_MOST // 2]:
                path.unlink(missing_ok=True)


def _digest(content: list[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
