"""Finds the tensors of files that torch.save wrote, without torch, and without running anything in them.

Such a file is an archive: a pickle that describes the tensors, and a record for each storage, stored as it is. The
pickle is read with a list of the few functions that make tensors, in whose place stand records.
"""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from storage.errors import InvalidInput, UnsafeArtifact
from storage.importing.files import RawArray, file_size, item_bytes
from storage.importing.unpickling import read_pickle

_STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
}
_OTHER_STORAGES = ("ShortStorage", "CharStorage", "ByteStorage", "BoolStorage", "ComplexFloatStorage", "UntypedStorage")
_LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True)
class _Storage:
    """A record of the archive. dtype: "" for one that can hold neither ids nor rows."""

    dtype: str
    key: str


@dataclass(frozen=True)
class _Tensor:
    """A tensor as the pickle describes it. offset: first element in the storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class FilePart(io.RawIOBase):
    """A part of a file as a file of its own. offset, size: in bytes."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._offset, self._size, self._at = offset, size, 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves to a place, as every file does."""
        self._at = max(0, (0, self._at, self._size)[whence] + offset)
        return self._at

    def tell(self) -> int:
        """Returns the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads some bytes."""
        self._file.seek(self._offset + self._at)
        count = self._file.readinto(memoryview(buffer)[: max(0, self._size - self._at)])
        self._at += count
        return count

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


def saved_tensors(path: Path, offset: int = 0, size: int | None = None) -> dict[str, RawArray]:
    """Returns the tensors of one or two dimensions that a file holds, by their names in it; "" for a single one.

    offset, size: the part of the file that torch.save wrote. Raises UnsafeArtifact naming what a pickle would import,
    InvalidInput for a file that is none, is cut off, or that an old torch wrote.
    """
    size = file_size(path) - offset if size is None else size
    if offset + size > file_size(path):
        raise InvalidInput(f"{path}: it ends before byte {offset + size:,}; it is cut off")
    file = FilePart(path, offset, size)
    try:
        if file.read(4) != b"PK\x03\x04":
            raise InvalidInput(
                f"{path}: is no file of torch.save, or one of a torch before 1.6; load it there and save it again"
            )
        return _tensors(path, offset, cast("IO[bytes]", file))
    except UnsafeArtifact as error:
        raise UnsafeArtifact(f"{path}: {error}; save the state_dict() alone") from None
    except InvalidInput:
        raise
    except Exception as error:  # an archive and a pickle raise whatever damage makes them raise
        raise InvalidInput(f"{path}: cannot be read, it is cut off or damaged: {error}") from None
    finally:
        file.close()


def _tensors(path: Path, offset: int, file: IO[bytes]) -> dict[str, RawArray]:
    with zipfile.ZipFile(file) as archive:
        (described,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        root = described.removesuffix("data.pkl")
        order = f"{root}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise InvalidInput(f"{path}: was written on a machine of the other byte order")
        with archive.open(described) as pickled:
            content = read_pickle(pickled, _KNOWN, _storage_of)
        found: dict[str, RawArray] = {}
        for name, tensor in _flat(content).items():
            if not 1 <= len(tensor.shape) <= 2 or not tensor.storage.dtype:
                continue
            if not _is_contiguous(tensor):
                raise InvalidInput(f"{path}: the tensor {name!r} is not contiguous; save tensor.contiguous()")
            record = archive.getinfo(f"{root}data/{tensor.storage.key}")
            if record.compress_type != zipfile.ZIP_STORED:
                raise InvalidInput(f"{path}: its records are compressed, which torch does not do")
            start = _data_of(file, record) + tensor.offset * item_bytes(tensor.storage.dtype)
            width = tensor.shape[1] if len(tensor.shape) == 2 else 0
            array = RawArray(path, tensor.storage.dtype, width, tensor.shape[0], offset + start)
            if array.rows * array.row_bytes + tensor.offset * item_bytes(array.dtype) > record.file_size:
                raise InvalidInput(f"{path}: the tensor {name!r} ends behind its record")
            found[name] = array
        return found


def _data_of(file: IO[bytes], record: zipfile.ZipInfo) -> int:
    """Returns where the bytes of a record begin; the header before them has a name and padding of any length."""
    file.seek(record.header_offset)
    header = file.read(_LOCAL_HEADER_BYTES)
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return record.header_offset + _LOCAL_HEADER_BYTES + name + extra


def _storage_of(reference: Any) -> _Storage:
    kind, dtype, key, *_ = reference
    if kind != "storage" or not isinstance(dtype, str):
        raise UnsafeArtifact("it refers to something that is no storage")
    return _Storage(dtype, str(key))


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
    if not isinstance(storage, _Storage):
        raise InvalidInput("a tensor without a storage")
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _nothing(*_: Any) -> None:
    """Stands for what is of no use here."""


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("torch", "Size"): lambda values: tuple(values),
    ("torch", "device"): _nothing,
    ("torch.serialization", "_get_layout"): _nothing,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
    **{("torch", name): "" for name in _OTHER_STORAGES},
    **{
        ("torch", name): name
        for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "bool")
    },
}


def _flat(value: Any, prefix: str = "") -> dict[str, _Tensor]:
    """Returns the tensors in nested mappings, with names joined by dots."""
    if isinstance(value, _Tensor):
        return {prefix: value}
    if not isinstance(value, Mapping):
        return {}
    found: dict[str, _Tensor] = {}
    for key, entry in value.items():
        found.update(_flat(entry, f"{prefix}.{key}" if prefix else str(key)))
    return found


def _is_contiguous(tensor: _Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
