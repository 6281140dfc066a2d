"""Writes dense weights as their difference to other weights, and puts them together again, to the bit.

The difference is the XOR of the bits. It is cut into blocks, and each block is compressed by Zstandard in the form that
is smallest: as it is, in planes (the first bytes of all values, then the second bytes, ...), or as the values that are
not zero with the gaps between them. A weight without a difference is not written. docs/format.md has the layout.

The weights that result have the shapes and sizes of those that are known already: nothing in a file says how much
memory they take, and no block may decompress to more than it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.checkpoint.tensors import TensorFile, WrittenFile, write_tensors
from storage.errors import IntegrityError, UnsafeArtifact
from storage.parallel import Pace, load_threads, map_in_order, map_paced

DIFFERENCE = "dense.xor.safetensors"
BLOCK_BYTES = 4 << 20
# Forms of a block.
SAME, WHOLE, PLANES, SPARSE = range(4)
_INDEX, _BLOCKS = "index.", "blocks."
_LEVEL = 1
# Every such block is tried first: where these do not shrink, the others will not either.
_TRIED_BLOCK = 16
# A difference of this share of the weights, or more, is not worth it.
_MOST_SHARE = 0.9
_GAP_BYTES = 4
# Above this share of values that differ, gaps and values take more than the whole block.
_SPARSE_SHARE = 1 / 8


@dataclass(frozen=True)
class _Block:
    form: int
    data: bytes
    #: Bytes before the compression.
    size: int


def write_difference(
    path: Path, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> WrittenFile | None:
    """Writes how `after` differs from `before` and forces it to the disk; None, and no file, when it is not smaller.

    before, after: arrays by the same names, with the same dtypes and shapes; bfloat16 as uint16.
    """
    total = sum(array.nbytes for array in after.values())
    pairs = {name: (_words(before[name]), _words(after[name])) for name in sorted(after)}
    tried = tried_bytes = 0
    for old, new in pairs.values():
        for part in _parts(new)[::_TRIED_BLOCK]:
            tried += len(_encoded(old[part], new[part]).data)
            tried_bytes += new[part].nbytes
    if tried > _MOST_SHARE * tried_bytes:
        return None
    tensors: dict[str, np.ndarray] = {}
    written = 0
    parts = {name: _parts(new) for name, (_, new) in pairs.items()}
    every = ((old[part], new[part]) for name, (old, new) in pairs.items() for part in parts[name])
    encoded = map_in_order(lambda pair: _encoded(*pair), every, load_threads())
    for name in pairs:
        blocks = [next(encoded) for _ in parts[name]]
        if all(block.form == SAME for block in blocks):
            continue
        index = np.array([(block.form, len(block.data), block.size) for block in blocks], np.int64)
        tensors[_INDEX + name] = index
        tensors[_BLOCKS + name] = np.frombuffer(b"".join(block.data for block in blocks), np.uint8)
        written += tensors[_BLOCKS + name].nbytes + index.nbytes
    if written > _MOST_SHARE * total:
        return None
    return write_tensors(path, tensors)


def changed_weights(data: np.ndarray | bytes) -> list[str]:
    """Returns the names of the weights that a file's bytes change. Raises UnsafeArtifact for a file of another kind."""
    file = TensorFile.from_bytes(DIFFERENCE, data)
    names = sorted(name.removeprefix(_INDEX) for name in file.arrays if name.startswith(_INDEX))
    if sorted(file.arrays) != sorted(prefix + name for name in names for prefix in (_INDEX, _BLOCKS)):
        raise UnsafeArtifact(f"{DIFFERENCE}: expected an index and blocks of each weight, got {sorted(file.arrays)}")
    return names


def read_difference(
    data: np.ndarray | bytes, before: Mapping[str, np.ndarray], pace: Pace | None = None
) -> dict[str, np.ndarray]:
    """Returns the weights that differ from `before`, as new arrays; those that are not among them are the same.

    data: the bytes of a file, (size,) uint8. before: all weights, bfloat16 as uint16; they are left as they are. pace:
    as for `map_paced`. Raises UnsafeArtifact for a file that `write_difference` does not write for these weights,
    IntegrityError for blocks that cannot be decompressed to what they stand for. Whether `before` are the right weights
    shows in the result alone.
    """
    names = changed_weights(data)
    file = TensorFile.from_bytes(DIFFERENCE, data)
    found: dict[str, np.ndarray] = {}
    work: list[_Stored] = []
    for name in names:
        if name not in before:
            raise UnsafeArtifact(f"{DIFFERENCE}: the version has no weight {name!r}")
        old = _words(before[name])
        new = np.empty_like(old)
        work += _stored(name, file, old, new)
        found[name] = new.view(before[name].dtype).reshape(before[name].shape)
    for _ in map_paced(_decode, work, pace):
        pass
    for name, array in found.items():
        if array.dtype == np.bool_ and (array.view(np.uint8) > 1).any():
            raise UnsafeArtifact(f"{DIFFERENCE}: {name!r} is BOOL and would hold bytes other than 0 and 1")
    return found


@dataclass(frozen=True)
class _Stored:
    """A block of a file, the old values that it stands for, and the place of the new ones."""

    where: str
    form: int
    data: np.ndarray
    size: int
    old: np.ndarray
    new: np.ndarray


def _stored(name: str, file: TensorFile, old: np.ndarray, new: np.ndarray) -> list[_Stored]:
    """Returns the blocks of a weight."""
    index, blocks = file.arrays[_INDEX + name], file.arrays[_BLOCKS + name]
    parts = _parts(old)
    where = f"{DIFFERENCE}: the weight {name!r}"
    if file.dtypes[_INDEX + name] != "I64" or index.shape != (len(parts), 3):
        raise UnsafeArtifact(f"{where}: the index is {list(index.shape)}, expected {[len(parts), 3]}")
    if file.dtypes[_BLOCKS + name] != "U8" or blocks.ndim != 1:
        raise UnsafeArtifact(f"{where}: its blocks are no bytes")
    if (index < 0).any() or (index > BLOCK_BYTES * 2).any() or int(index[:, 1].sum()) != len(blocks):
        raise UnsafeArtifact(f"{where}: the blocks of the index do not make its {len(blocks)} bytes")
    found, start = [], 0
    for number, (part, (form, length, size)) in enumerate(zip(parts, index.tolist(), strict=True)):
        data = blocks[start : start + length]
        found.append(_Stored(f"{where}, block {number}", form, data, size, old[part], new[part]))
        start += length
    return found


def _zstandard(**options: Any) -> Any:
    # pyarrow starts a thread when it is imported, and the process that forks servers must not have one.
    import pyarrow

    return pyarrow.Codec("zstd", **options)


def _words(array: np.ndarray) -> np.ndarray:
    """Returns an array's values as unsigned integers of their size, (n,)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.dtype(f"<u{array.dtype.itemsize}"))


def _parts(words: np.ndarray) -> list[slice]:
    step = BLOCK_BYTES // words.itemsize
    return [slice(start, min(start + step, len(words))) for start in range(0, len(words), step)]


def _encoded(old: np.ndarray, new: np.ndarray) -> _Block:
    xor = old ^ new
    places = np.flatnonzero(xor)
    if not len(places):
        return _Block(SAME, b"", 0)
    codec = _zstandard(compression_level=_LEVEL)
    if len(places) <= _SPARSE_SHARE * len(xor):
        gaps = np.diff(places, prepend=-1).astype("<u4") - np.uint32(1)
        raw = b"".join([_planes(gaps), _planes(xor[places])])
        return _Block(SPARSE, codec.compress(raw, asbytes=True), len(raw))
    forms = [(WHOLE, xor.tobytes())] + ([(PLANES, _planes(xor))] if xor.itemsize > 1 else [])
    blocks = [_Block(form, codec.compress(raw, asbytes=True), len(raw)) for form, raw in forms]
    return min(blocks, key=lambda block: len(block.data))


def _decode(block: _Stored) -> None:
    """Writes old values with a block's difference into the place of the new ones, (n,) words."""
    where, form, size, old, new = block.where, block.form, block.size, block.old, block.new
    if form == SAME and size == len(block.data) == 0:
        new[:] = old
        return
    entry = _GAP_BYTES + old.itemsize
    whole, sparse = form in (WHOLE, PLANES) and size == old.nbytes, form == SPARSE and size % entry == 0
    if not (whole or (sparse and 0 < size // entry <= len(old))):
        raise UnsafeArtifact(
            f"{where} of form {form} and {size} bytes does not fit the {old.nbytes} bytes of its values"
        )
    try:
        raw = np.frombuffer(_zstandard().decompress(block.data, size), np.uint8)
    except OSError as error:
        raise IntegrityError(f"{where}: {error}") from None
    if form == WHOLE:
        np.bitwise_xor(old, raw.view(old.dtype), out=new)
    elif form == PLANES:
        np.bitwise_xor(old, _from_planes(raw, old.dtype), out=new)
    else:
        count = size // entry
        gaps = _from_planes(raw[: _GAP_BYTES * count], np.dtype("<u4"))
        places = np.cumsum(gaps.astype(np.int64) + 1) - 1
        if places[-1] >= len(old):
            raise UnsafeArtifact(f"{where}: a value lies behind its end")
        new[:] = old
        new[places] ^= _from_planes(raw[_GAP_BYTES * count :], old.dtype)


def _planes(words: np.ndarray) -> bytes:
    """Returns the first bytes of all words, then the second bytes, and so on."""
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, words.itemsize).T).tobytes()


def _from_planes(raw: np.ndarray, dtype: np.dtype[np.generic]) -> np.ndarray:
    words: np.ndarray = np.ascontiguousarray(raw.reshape(dtype.itemsize, -1).T).reshape(-1).view(dtype)
    return words
