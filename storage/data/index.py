"""Remembers the blocks of files, so that a run that is resumed need not read whole files to find them again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

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
        key = json.dumps([file.path, file.format, file.size, file.changed_ns, how])
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _forget(self) -> None:
        kept = list(self._folder.glob("*.json"))
        if len(kept) > _FILES_AT_MOST:
            kept.sort(key=lambda path: path.stat().st_mtime)
            for path in kept[: len(kept) - _FILES_AT_MOST // 2]:
                path.unlink(missing_ok=True)
