"""Finds the tensors of files that torch.save wrote, without torch, and without running anything in them.

Such a file is an archive: a pickle that describes the tensors, and a record for each storage, stored as it is. The
pickle is read with a list of the few functions that make tensors, in whose place stand records.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from storage.errors import InvalidInput, UnsafeArtifact
from storage.importing.files import OtherArray, RawArray, file_size, item_bytes
from storage.importing.unpickling import read_pickle

_STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
}
# What can hold neither ids nor rows.
_OTHER_STORAGES = {
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "bytes",
}
_OTHER_DTYPES = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("uint16", "uint32", "uint64", "complex32"),
)
_LOCAL_HEADER_BYTES = 30
_MOST_DESCRIBED_BYTES = 256 << 20
_MOST_ENTRIES = 2_000_000
_MOST_NAME = 4096


@dataclass(frozen=True)
class _Storage:
    """A record of the archive."""

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


def saved_tensors(path: Path, offset: int = 0, size: int | None = None) -> dict[str, RawArray | OtherArray]:
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
    except InvalidInput as error:
        raise error if str(path) in str(error) else InvalidInput(f"{path}: {error}; it is damaged") from None
    except Exception as error:  # an archive and a pickle raise whatever damage makes them raise
        raise InvalidInput(f"{path}: cannot be read, it is cut off or damaged: {error}") from None
    finally:
        file.close()


def _tensors(path: Path, offset: int, file: IO[bytes]) -> dict[str, RawArray | OtherArray]:
    with zipfile.ZipFile(file) as archive:
        (described,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        root = described.removesuffix("data.pkl")
        order = f"{root}byteorder"
        if order in archive.namelist() and _content(file, archive.getinfo(order)) != b"little":
            raise InvalidInput(f"{path}: was written on a machine of the other byte order")
        content = read_pickle(_content(file, archive.getinfo(described)), _KNOWN, _storage_of)
        found: dict[str, RawArray | OtherArray] = {}
        for name, tensor in _flat(content).items():
            if not 1 <= len(tensor.shape) <= 2 or 0 in tensor.shape[1:]:
                continue  # neither ids nor rows
            width = tensor.shape[1] if len(tensor.shape) == 2 else 0
            if tensor.storage.dtype not in _STORAGES.values():
                found[name] = OtherArray(path, name, tensor.storage.dtype, width, tensor.shape[0])
                continue
            if not _is_contiguous(tensor):
                kind = f"{tensor.storage.dtype} that is not contiguous (save tensor.contiguous())"
                found[name] = OtherArray(path, name, kind, width, tensor.shape[0])
                continue
            record = archive.getinfo(f"{root}data/{tensor.storage.key}")
            _check_stored(record)
            start = _data_of(file, record) + tensor.offset * item_bytes(tensor.storage.dtype)
            array = RawArray(path, tensor.storage.dtype, width, tensor.shape[0], offset + start)
            if array.rows * array.row_bytes + tensor.offset * item_bytes(array.dtype) > record.file_size:
                raise InvalidInput(f"{path}: the tensor {name!r} ends behind its record")
            found[name] = array
        return found


def _content(file: IO[bytes], record: zipfile.ZipInfo) -> bytes:
    """Returns the bytes of a small record, compared with their checksum; torch can be told to write none."""
    _check_stored(record)
    if record.file_size > _MOST_DESCRIBED_BYTES:
        raise InvalidInput(f"{record.filename} has {record.file_size:,} bytes, too many for names and shapes")
    file.seek(_data_of(file, record))
    data = file.read(record.file_size)
    if len(data) != record.file_size or (record.CRC and zlib.crc32(data) != record.CRC):
        raise InvalidInput(f"the checksum of {record.filename} differs")
    return data


def _check_stored(record: zipfile.ZipInfo) -> None:
    if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1:
        raise InvalidInput(f"the record {record.filename} is compressed or encrypted, which torch does not do")


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
    tensor = _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))
    if min(tensor.offset, *tensor.shape, *tensor.strides, 0) < 0 or len(tensor.shape) != len(tensor.strides):
        raise InvalidInput("a tensor of a shape below 0")
    return tensor


def _tensor_of_dtype(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Any:
    """Stands for a tensor whose dtype has no class of storages: requires_grad, hooks and the dtype follow."""
    if not isinstance(storage, _Storage) or len(rest) < 3:
        raise InvalidInput("a tensor without a storage")
    return _tensor(_Storage(str(rest[2]), storage.key), offset, shape, strides)


def _nothing(*_: Any) -> None:
    """Stands for what is of no use here."""


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_dtype,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("torch", "Size"): lambda values: tuple(map(int, values)),
    ("torch", "device"): _nothing,
    ("torch.serialization", "_get_layout"): _nothing,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
    **{("torch", name): dtype for name, dtype in _OTHER_STORAGES.items()},
    ("torch.storage", "UntypedStorage"): "bytes",
    **{("torch", name): name for name in (*_STORAGES.values(), *_OTHER_STORAGES.values(), *_OTHER_DTYPES)},
}


def _flat(content: Any) -> dict[str, _Tensor]:
    """Returns the tensors in nested mappings, with names joined by dots."""
    found: dict[str, _Tensor] = {}
    waiting: list[tuple[str, Any]] = [("", content)]
    seen = 0
    while waiting:
        prefix, value = waiting.pop()
        if isinstance(value, _Tensor):
            if prefix in found:
                raise InvalidInput(f"it holds two tensors {prefix!r}")
            found[prefix] = value
        elif isinstance(value, Mapping):
            # A mapping may hold another one twice, and so more entries than there are bytes.
            seen += len(value)
            if seen > _MOST_ENTRIES or len(prefix) > _MOST_NAME:
                raise InvalidInput("it holds too many entries in entries")
            named = [(key, entry) for key, entry in value.items() if isinstance(key, str | int)]
            waiting += [(f"{prefix}.{key}" if prefix else str(key), entry) for key, entry in reversed(named)]
    return found


def _is_contiguous(tensor: _Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
