"""Reads the raw parts of files: arrays that lie in them as they are, in blocks and without mapping all of them."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import EmberlineError, InvalidInput, NotFound, ReadError

# BF16 has no numpy type: its two bytes are the upper half of a float32.
BFLOAT16 = "bfloat16"
_DTYPES = {"float32": "<f4", "float16": "<f2", "float64": "<f8", "int64": "<i8", "int32": "<i4", "uint64": "<u8"}
# model-00001-of-00002.safetensors, part_0_of_2.npz and so on.
_PART = re.compile(r"(?P<before>.*?)(?P<number>[0-9]+)(?P<of>[-_.]of[-_.])(?P<count>[0-9]+)(?P<behind>(?![0-9]).*)")


@dataclass(frozen=True)
class RawArray:
    """An array (n, width) that lies in a file as it is. width: 0 for an array (n,)."""

    path: Path
    dtype: str
    width: int
    rows: int
    offset: int = 0

    @classmethod
    def of_file(cls, path: Path, dtype: str, width: int = 0) -> RawArray:
        """Takes a whole file. Raises NotFound, and InvalidInput for a size that is no number of rows."""
        row_bytes = item_bytes(dtype) * max(1, width)
        size = file_size(path)
        if size % row_bytes:
            raise InvalidInput(
                f"{path}: {size} bytes are no whole number of rows of {row_bytes} bytes ({max(1, width)} x {dtype}); "
                "it is cut off, or the dim or the dtype is another"
            )
        return cls(path, dtype, width, size // row_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return item_bytes(self.dtype) * max(1, self.width)

    def read(self, part: slice) -> np.ndarray:
        """Returns rows of it; bfloat16 as float32. Raises InvalidInput for a file that ends before."""
        count = part.stop - part.start
        dtype = np.dtype("<u2" if self.dtype == BFLOAT16 else _DTYPES[self.dtype])
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + part.start * self.row_bytes)
                values = np.fromfile(file, dtype, count * max(1, self.width))
        except OSError as error:
            raise ReadError(f"{self.path}: {error.strerror or error}") from error
        if len(values) != count * max(1, self.width):
            raise InvalidInput(f"{self.path}: it ends before its row {part.stop}; it is cut off")
        if self.dtype == BFLOAT16:
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values.reshape(count, self.width) if self.width else values

    def all_of(self, step: int = 1 << 20) -> Iterator[np.ndarray]:
        """Yields all rows, `step` at a time."""
        for start in range(0, self.rows, step):
            yield self.read(slice(start, min(start + step, self.rows)))


@dataclass(frozen=True)
class OtherArray:
    """A tensor of a file whose dtype can hold neither ids nor rows. It is there so that it is not left out unseen."""

    path: Path
    name: str
    dtype: str
    width: int
    rows: int

    def read(self, part: slice) -> np.ndarray:
        """Raises InvalidInput, whatever is read."""
        known = ", ".join([*_DTYPES, BFLOAT16])
        raise InvalidInput(f"{self.path}: the tensor {self.name!r} is {self.dtype}, expected one of {known}")


def item_bytes(dtype: str) -> int:
    """Returns the bytes of a value. Raises InvalidInput for a dtype that is not known."""
    if dtype == BFLOAT16:
        return 2
    if dtype not in _DTYPES:
        raise InvalidInput(f"dtype is {dtype!r}, expected one of {', '.join([*_DTYPES, BFLOAT16])}", field="dtype")
    return np.dtype(_DTYPES[dtype]).itemsize


def check_there(path: Path) -> None:
    """Raises NotFound when there is neither a file nor a folder."""
    if not path.exists():
        raise NotFound(f"{path}: there is no such file or folder")


def file_size(path: Path) -> int:
    """Returns the bytes of a file. Raises NotFound when there is none."""
    if not path.is_file():
        raise NotFound(f"{path}: there is no such file")
    return path.stat().st_size


def files_of(path: Path, suffixes: Sequence[str], *, what: str) -> list[Path]:
    """Returns a file itself, or the files of a folder with one of the suffixes, by name.

    what: what they are called, for the message. Raises NotFound when there is none, InvalidInput where a part of
    several is missing, by their names.
    """
    if path.is_file():
        return [path]
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"{path}: is neither a file nor a folder")
    try:
        found = sorted(each for each in path.iterdir() if each.name.endswith(tuple(suffixes)))
    except OSError as error:
        raise _unread(path, error) from error
    if not found:
        raise NotFound(f"{path}: no {what} ({', '.join(suffixes)}) in it")
    _check_parts(path, [each.name for each in found])
    return [_plain_file(each) for each in found]


def _check_parts(folder: Path, names: Sequence[str]) -> None:
    """Raises InvalidInput where the names of files say that they are parts of several, and one is missing."""
    families: dict[tuple[str, ...], dict[int, int]] = defaultdict(dict)
    for name in names:
        if match := _PART.fullmatch(name):
            family = (match["before"], match["of"], match["count"], match["behind"])
            families[family][int(match["number"])] = len(match["number"])
    for (before, of, count, behind), numbers in families.items():
        total, digits = int(count), max(numbers.values())
        # Parts are counted from 0 or from 1 on. Where neither end is there, nobody knows which.
        ends = [number for number in (0, total) if number in numbers]
        first = 0 if 0 in ends else 1
        within = itertools.islice(range(first, first + total), len(numbers) + 1)
        lost = [number for number in within if number not in numbers][:1] if ends else [0, total]
        if lost:
            missing = " or ".join(f"{before}{number:0{digits}d}{of}{count}{behind}" for number in lost)
            raise InvalidInput(f"{folder}: the file {missing} is missing; by their names they are {total}")


def files_below(path: Path, pattern: str) -> list[Path]:
    """Returns the files of a folder whose names match, at any depth and through links, by path; or the file itself.

    Raises NotFound without the folder, ReadError for one that cannot be listed, InvalidInput for what is no file.
    """
    if path.is_file():
        return [path] if path.match(pattern) else []

    def refuse(error: OSError) -> None:
        raise _unread(Path(error.filename), error) from error

    found: list[Path] = []
    seen: set[str] = set()
    for folder, below, names in os.walk(path, onerror=refuse, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen:
            below.clear()  # a link to a folder above it
            continue
        seen.add(place)
        found += [_plain_file(Path(folder, name)) for name in fnmatch.filter(names, pattern)]
    return sorted(found)


def _unread(path: Path, error: OSError) -> EmberlineError:
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{path}: there is no such file or folder")
    return ReadError(f"{path}: {error.strerror or error}")


def _plain_file(path: Path) -> Path:
    """Returns a path of a folder that is called like one of its files. Raises InvalidInput where it is none."""
    if not path.is_file():
        what = "a folder, which is imported by itself" if path.is_dir() else "no file, or a link to nothing"
        raise InvalidInput(f"{path}: is {what}")
    return path
