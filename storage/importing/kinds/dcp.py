"""Checkpoints of torch.distributed.checkpoint, which TorchRec's sharded models are saved with.

Shards of rows, of columns and of whole tables are put together. `.metadata` is read by an unpickler of our own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from storage.errors import InvalidInput, NotFound
from storage.importing.arrays import Array
from storage.importing.dcp_metadata import ShardedTensor, read_metadata
from storage.importing.files import OtherArray, RawArray, check_there
from storage.importing.kinds.base import Kind
from storage.importing.named_tensors import tables_among
from storage.importing.options import ImportOptions
from storage.importing.source import FileTable
from storage.importing.torch_files import saved_tensors

# The first row and column of a part in its tensor, and what it holds.
Placed = tuple[int, int, RawArray | OtherArray]


class Assembled:
    """A tensor (n,) or (n, width) put together from parts.

    where, name: of the tensor, for messages. size: its dimensions. parts: offsets (row, column) and array of each.
    Raises InvalidInput for parts of several dtypes, and where they lie outside of it, overlap or leave a gap.
    """

    def __init__(self, where: Path, name: str, size: Sequence[int], parts: Sequence[Placed]) -> None:
        self.rows = size[0]
        self.width = size[1] if len(size) == 2 else 0
        self._parts = parts
        what = f"{where}: {name!r} {list(size)}"
        for row, column, array in parts:
            inside = row + array.rows <= self.rows and column + array.width <= self.width
            if not inside or min(row, column) < 0 or bool(array.width) != bool(self.width):
                raise InvalidInput(f"{what}: the shard at row {row}, column {column} lies outside of it")
        dtypes = sorted({array.dtype for _, _, array in parts})
        if len(dtypes) > 1:
            raise InvalidInput(f"{what}: its shards are {' and '.join(dtypes)}, expected one dtype")
        _check_apart(what, parts)
        if sum(array.rows * max(1, array.width) for _, _, array in parts) != math.prod(size):
            raise InvalidInput(f"{what}: a shard is missing")

    def read(self, part: slice) -> np.ndarray:
        """Returns some rows."""
        out: np.ndarray | None = None
        for row, column, array in self._parts:
            start, stop = max(part.start, row), min(part.stop, row + array.rows)
            if start >= stop:
                continue
            values = array.read(slice(start - row, stop - row))
            if out is None:
                count = part.stop - part.start
                out = np.empty((count, self.width) if self.width else count, values.dtype)
            here = slice(start - part.start, stop - part.start)
            if self.width:
                out[here, column : column + array.width] = values
            else:
                out[here] = values
        assert out is not None
        return out


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a checkpoint that is opened when it is first read."""

    folder: Path
    name: str
    described: ShardedTensor

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.described.size[0]

    @property
    def width(self) -> int:
        """Values of a row; 0 for a tensor (n,)."""
        return self.described.size[1] if len(self.described.size) == 2 else 0

    def read(self, part: slice) -> np.ndarray:
        """Returns some rows."""
        return self.opened().read(part)

    def opened(self) -> Assembled:
        """Returns its parts together. Raises InvalidInput where one is missing, or other than described."""
        if "_opened" not in self.__dict__:
            self.__dict__["_opened"] = self._assembled()
        opened: Assembled = self.__dict__["_opened"]
        return opened

    def _assembled(self) -> Assembled:
        parts: list[Placed] = []
        for chunk in self.described.chunks:
            # The file itself may be a link, as a cache of downloads makes them.
            place = PurePosixPath(chunk.file)
            if place.is_absolute() or ".." in place.parts:
                raise InvalidInput(
                    f"{self.folder}: the metadata names {chunk.file}, which is no file of the checkpoint"
                )
            file = self.folder / place
            if not file.is_file():
                raise NotFound(f"{file}: there is no such file, and {self.name!r} has a shard in it")
            found = list(saved_tensors(file, chunk.first, chunk.bytes).values())
            shapes = [(array.rows, *([array.width] if array.width else [])) for array in found]
            if shapes != [chunk.sizes] or len(chunk.offsets) != len(self.described.size):
                raise InvalidInput(f"{file}: the shard of {self.name!r} at {list(chunk.offsets)} is not as described")
            parts.append((chunk.offsets[0], chunk.offsets[1] if self.width else 0, found[0]))
        return Assembled(self.folder, self.name, self.described.size, parts)


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of a checkpoint."""
    if len(paths) > 1:
        raise InvalidInput(f"{paths[1]}: a checkpoint is one folder; import one after the other")
    folder = paths[0]
    check_there(folder)
    if not (folder / ".metadata").is_file():
        raise NotFound(f"{folder}: no file .metadata in it: is no checkpoint of torch.distributed.checkpoint")
    found: dict[str, Array] = {
        name: _Tensor(folder, name, described)
        for name, described in read_metadata(folder).items()
        if 1 <= len(described.size) <= 2 and all(described.size)
    }
    return tables_among(found, str(folder), options)


def _check_apart(what: str, parts: Sequence[Placed]) -> None:
    """Raises InvalidInput for parts that overlap."""
    ordered = sorted(parts, key=lambda part: part[:2])
    for number, (row, column, array) in enumerate(ordered):
        for other_row, other_column, other in ordered[number + 1 :]:
            if other_row >= row + array.rows:
                break
            if other_column < column + max(1, array.width) and column < other_column + max(1, other.width):
                raise InvalidInput(f"{what}: two shards hold the same rows, from {other_row} on")


KIND = Kind(
    "dcp",
    "Checkpoints of torch.distributed.checkpoint, as of TorchRec.",
    """Publish the embedding tables of a checkpoint of torch.distributed.checkpoint.

    PATH is its folder, with .metadata and .distcp files. Tables that were sharded by rows, by columns or as a whole are
    put together. The id of a row is its number, or what a tensor weight_id beside it says. Nothing but tensors is read:
    metadata that would import anything else is refused. Without --only the tables of TorchRec's collections are
    imported, else all tensors that are called like embeddings.
    """,
    """\b
Examples:
  emberline import dcp checkpoint/ --check
  emberline import dcp checkpoint/ --module ranker.py:ranker --map user=user_table --repository build/models \\\\
      --name ranker""",
    open_files,
    (),
)
