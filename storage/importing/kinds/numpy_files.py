"""numpy files: .npz with an array of ids and one of rows, or folders with one .npy of each. No pickle is read."""

from __future__ import annotations

import io
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from storage.errors import InvalidInput, NotFound
from storage.importing.arrays import Part, table_of_parts
from storage.importing.files import file_size, files_of
from storage.importing.kinds.base import Kind, named_paths
from storage.importing.options import ImportOptions, pick
from storage.importing.source import FileTable

_MAX_HEADER_BYTES = 1 << 16
#: What the modules zipfile and zlib raise for an archive that is damaged, encrypted or packed in an unusual way.
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError, ValueError, LookupError)


class NpyArray:
    """An array (n,) or (n, width) in the .npy format, in a file or in an archive, read from its beginning on.

    opened: opens it anew. Raises InvalidInput for a file of another format, of objects, or in the order of Fortran.
    """

    def __init__(self, name: str, opened: Callable[[], IO[bytes]]) -> None:
        self._name = name
        self._opened = opened
        with opened() as file:
            shape, self._dtype = self._header(file)
        self.rows = shape[0]
        self.width = shape[1] if len(shape) == 2 else 0
        #: numpy's letter for the kind of numbers.
        self.kind = self._dtype.kind
        self._file: IO[bytes] | None = None
        self._at = 0

    def read(self, part: slice) -> np.ndarray:
        """Returns some rows. Parts that follow each other are read once. Raises InvalidInput where the file ends."""
        if self._file is None or self._at > part.start:
            self.close()
            self._file = self._opened()
            self._header(self._file)
            self._at = 0
        row_bytes = self._dtype.itemsize * max(1, self.width)
        self._skip((part.start - self._at) * row_bytes)
        count = part.stop - part.start
        data = self._bytes(count * row_bytes)
        if len(data) != count * row_bytes:
            raise InvalidInput(f"{self._name}: it ends before its row {part.stop}; it is cut off")
        self._at = part.stop
        if self._at == self.rows:
            self.close()
        values = np.frombuffer(data, self._dtype)
        values = values.astype(self._dtype.newbyteorder("="), copy=False)
        return values.reshape(count, self.width) if self.width else values

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _skip(self, count: int) -> None:
        while count > 0:
            skipped = len(self._bytes(min(count, 8 << 20)))
            if not skipped:
                raise InvalidInput(f"{self._name}: it is cut off")
            count -= skipped

    def _bytes(self, count: int) -> bytes:
        assert self._file is not None
        try:
            return self._file.read(count)
        except DAMAGED as error:
            raise InvalidInput(f"{self._name}: it is damaged: {error}") from None

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
        try:
            shape, fortran, dtype = _read_header(file)
        except (*DAMAGED, TypeError) as error:
            raise InvalidInput(f"{self._name}: is no .npy array: {error}") from None
        if dtype.hasobject:
            raise InvalidInput(f"{self._name}: holds Python objects, which are not read")
        if not 1 <= len(shape) <= 2 or dtype.kind not in "iuf" or shape[0] < 0 or (len(shape) == 2 and shape[1] < 1):
            raise InvalidInput(f"{self._name}: is {dtype} {list(shape)}, expected numbers [n] or [n, dim]")
        if fortran and math.prod(shape) != max(shape):
            raise InvalidInput(f"{self._name}: is in the order of Fortran; save np.ascontiguousarray(array)")
        return shape, dtype


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads a header, after a look at how long it says it is: numpy would read all of it first."""
    version = np.lib.format.read_magic(file)
    size_bytes = 2 if version == (1, 0) else 4
    size = file.read(size_bytes)
    if int.from_bytes(size, "little") > _MAX_HEADER_BYTES:
        raise ValueError(f"its header has {int.from_bytes(size, 'little'):,} bytes")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(io.BytesIO(size + file.read(int.from_bytes(size, "little"))))


@dataclass(frozen=True)
class NpzFile:
    """An archive of arrays. Raises NotFound without the file, InvalidInput for one that is no archive."""

    path: Path

    def names(self) -> list[str]:
        """Returns the names of its arrays."""
        if not self.path.is_file():
            raise NotFound(f"{self.path}: there is no such file")
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        except DAMAGED as error:
            raise InvalidInput(f"{self.path}: is no .npz file, or it is cut off: {error}") from None
        if len(set(names)) < len(names):
            raise InvalidInput(f"{self.path}: holds two arrays of one name: {', '.join(sorted(names))}")
        return names

    def array(self, name: str) -> NpyArray:
        """Returns an array of it."""
        return NpyArray(f"{self.path}, array {name!r}", lambda: self._opened(name))

    def _opened(self, name: str) -> IO[bytes]:
        try:
            return zipfile.ZipFile(self.path).open(f"{name}.npy")
        except DAMAGED as error:
            raise InvalidInput(f"{self.path}, array {name!r}: cannot be read, it is damaged: {error}") from None


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of files: a table for each path, which is an archive, or a folder of arrays or archives."""
    tables: list[FileTable] = []
    for name, places in named_paths(paths, options).items():
        parts = [part for place in places for part in _parts(place, options)]
        tables.append(table_of_parts(name, parts, options))
    return tables


def _parts(path: Path, options: ImportOptions) -> list[Part]:
    found = files_of(path, [".npz", ".npy"], what="numpy files")
    archives = [NpzFile(file) for file in found if file.suffix == ".npz" or path.is_file()]
    if not archives:
        known = [file.stem for file in found]
        return [_part(str(path), known, lambda name: _npy(path / f"{name}.npy"), options)]
    return [_part(str(file.path), file.names(), file.array, options) for file in archives]


def _part(what: str, known: list[str], array: Callable[[str], NpyArray], options: ImportOptions) -> Part:
    def wanted(option: str, name: str) -> NpyArray:
        return array(pick(name, known, option=option, what=what))

    counts = wanted("count", options.count) if options.count else None
    return Part(what, wanted("id", options.id or "ids"), wanted("row", options.row or "rows"), counts)


def _npy(path: Path) -> NpyArray:
    file_size(path)  # a pipe would have no end
    return NpyArray(str(path), lambda: path.open("rb"))


KIND = Kind(
    "numpy",
    "numpy files: .npz with ids and rows, or folders of .npy.",
    """Publish tables of numpy files. No pickle is read.

    Each PATH is a table of that name: an archive .npz, a folder of archives, or a folder with one .npy for ids and one
    for rows. The arrays are called ids and rows, or as --id and --row say.
    """,
    """\b
Examples:
  emberline import numpy item.npz --check
  emberline import numpy item=export/ --id item_id --row vector --repository build/models --name shop""",
    open_files,
    ("table", "id", "row", "count"),
)
