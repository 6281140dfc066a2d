"""Reads the metadata of torch.distributed.checkpoint without running it.

It is a pickle, which is read with a list of the few classes that such a file has. Plain records stand in their places.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import InvalidInput, UnsafeArtifact
from storage.importing.files import file_size
from storage.importing.unpickling import read_pickle

_MAX_BYTES = 256 << 20
_MOST_PATH = 1 << 16


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor, and the place where torch.save wrote it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    first: int
    bytes: int


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor in parts."""

    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class _Record:
    """Takes the state of an object of any class, and does nothing."""

    state: dict[str, Any]

    def __new__(cls, *args: Any) -> _Record:
        record = super().__new__(cls)
        record.state = {}
        return record

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        # Properties of tensors are a tuple, and nothing of them is needed.
        self.state = state if isinstance(state, dict) else {}

    def __hash__(self) -> int:
        return id(self)


def _size(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _path(*parts: str) -> str:
    joined = "/".join(parts)
    if len(joined) > _MOST_PATH:
        raise InvalidInput("a path is too long")  # paths of paths of paths
    return joined


def _flat_tuple(values: Any = ()) -> tuple[Any, ...]:
    made = tuple(values)
    if any(isinstance(value, tuple) for value in made):
        raise InvalidInput("a tuple is made of tuples by a call")  # `read_pickle` bounds those that are not
    return made


_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    (_METADATA, name)
    for name in (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"),
    ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
}
_BUILTINS = {
    ("torch", "Size"): _size,
    ("collections", "OrderedDict"): dict,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "tuple"): _flat_tuple,
    ("builtins", "set"): set,
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "Path"): _path,
}


_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool"),
    *("int64", "int32", "int16", "int8", "uint8", "strided", "contiguous_format", "preserve_format"),
)
_KNOWN = {**dict.fromkeys(_RECORDS, _Record), **_BUILTINS, **{("torch", name): name for name in _DTYPES}}


def read_metadata(folder: Path) -> dict[str, ShardedTensor]:
    """Returns the tensors of a checkpoint by name. folder: holds `.metadata` and the files that it names.

    Raises NotFound without it, UnsafeArtifact for a pickle of anything else, InvalidInput for a damaged one.
    """
    path = folder / ".metadata"
    if file_size(path) > _MAX_BYTES:
        raise InvalidInput(f"{path}: {file_size(path):,} bytes are too many for metadata")
    try:
        content = read_pickle(path.read_bytes(), _KNOWN)
        return _tensors(content)
    except UnsafeArtifact as error:
        raise UnsafeArtifact(f"{path}: {error}") from None
    except Exception as error:  # an unpickler raises whatever a damaged file makes it raise
        raise InvalidInput(f"{path}: is no metadata of torch.distributed.checkpoint, or damaged: {error}") from None


def _tensors(content: Any) -> dict[str, ShardedTensor]:
    described = content.state["state_dict_metadata"]
    places: dict[tuple[str, tuple[int, ...] | None], tuple[str, int, int]] = {}
    for index, info in content.state["storage_data"].items():
        if info.state.get("transform_descriptors"):
            raise InvalidInput(f"{index.state['fqn']!r} is compressed ({info.state['transform_descriptors']})")
        offset = index.state.get("offset")
        key = index.state["fqn"], None if offset is None else _size(offset)
        places[key] = str(info.state["relative_path"]), int(info.state["offset"]), int(info.state["length"])
    found: dict[str, ShardedTensor] = {}
    for name, entry in described.items():
        if "chunks" not in entry.state:
            continue  # bytes, not a tensor
        chunks = []
        for chunk in entry.state["chunks"]:
            offsets, sizes = _size(chunk.state["offsets"]), _size(chunk.state["sizes"])
            file, first, size = places.get((name, offsets)) or places[name, None]
            chunks.append(Chunk(offsets, sizes, file, first, size))
        found[str(name)] = ShardedTensor(_size(entry.state["size"]), tuple(chunks))
    return found
