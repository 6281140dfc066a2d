"""Checkpoints of TensorFlow, version 2: DeepRec's embedding variables, and plain variables of TF1, TF2 and Keras.

DeepRec saves an embedding variable V as the tensors V-keys, V-values, V-freqs and V-versions, and its partitions as
V/part_N-keys and so on. The rows of a plain variable are numbered; its partitions are slices of one tensor.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from storage._pages import crc32c
from storage.errors import InvalidInput, NotFound, Unsupported
from storage.importing.arrays import Array, Part, table_of_parts
from storage.importing.files import RawArray, file_size
from storage.importing.kinds.base import Kind
from storage.importing.kinds.dcp import Assembled, Placed
from storage.importing.named_tensors import Numbers, chosen_tensors
from storage.importing.options import ImportOptions
from storage.importing.source import FileTable, table_name
from storage.importing.tf_index import DTYPES, Entry, Index, read_index, slice_key, unmasked

_PART = re.compile(r"(?P<name>.+)/part_(?P<part>[0-9]+)")
_ATTRIBUTES = "/.ATTRIBUTES/VARIABLE_VALUE"
_CHECKED_BYTES = 8 << 20


class Bundle:
    """A checkpoint. Raises NotFound or InvalidInput for one that is not whole."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.index: Index = read_index(prefix.with_name(prefix.name + ".index"))
        self._checked: set[Path] = set()

    def tensor(self, name: str) -> Array:
        """Returns a tensor (n,) or (n, dim), put together from its slices, after a check of every byte of it."""
        entry = self.index.entries[name.encode()]
        if not entry.slices:
            return self._array(name, entry)
        index = self.prefix.with_name(f"{self.prefix.name}.index")
        parts: list[Placed] = []
        for place in entry.slices:
            part = self.index.entries.get(slice_key(name, place))
            if part is None:
                raise InvalidInput(f"{index}: the slice {place} of {name!r} is missing")
            # A length of -1 is all of the dimension, from its beginning on.
            sizes = [whole if size < 0 else size for (_, size), whole in zip(place, entry.shape, strict=False)]
            if list(part.shape) != sizes or len(sizes) != len(entry.shape):
                raise InvalidInput(f"{index}: the slice {place} of {name!r} is {list(part.shape)}")
            row, column, *_ = *(0 if size < 0 else first for first, size in place), 0
            parts.append((row, column, self._array(name, part)))
        return Assembled(index, name, entry.shape, parts)

    def _array(self, name: str, entry: Entry) -> RawArray:
        file = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.index.shards:05d}")
        if not file.is_file():
            raise NotFound(f"{file}: there is no such file, and {name!r} lies in it; a shard is missing")
        dtype = DTYPES.get(entry.dtype)
        if dtype is None or not 1 <= len(entry.shape) <= 2:
            raise InvalidInput(
                f"{file}: {name!r} is {list(entry.shape)} of TensorFlow's dtype {entry.dtype}, expected [n] or "
                f"[n, dim] of {', '.join(DTYPES.values())}"
            )
        width = entry.shape[1] if len(entry.shape) == 2 else 0
        array = RawArray(file, dtype, width, entry.shape[0], entry.offset)
        if array.rows * array.row_bytes != entry.size or entry.offset + entry.size > file_size(file):
            raise InvalidInput(f"{file}: {name!r} {list(entry.shape)} does not fit into it; it is cut off")
        if entry.crc and _crc(file, entry) != unmasked(entry.crc):
            raise InvalidInput(f"{file}: the checksum of {name!r} differs; the file is damaged")
        return array


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of a checkpoint: its embedding variables, and variables that are called like embeddings."""
    if len(paths) > 1:
        raise InvalidInput(f"{paths[1]}: a checkpoint is one prefix; import one after the other")
    bundle = Bundle(_prefix(paths[0]))
    if any(b"-sparse_incr_" in key for key in bundle.index.entries):
        raise Unsupported(
            f"{bundle.prefix}.index: is an incremental checkpoint of DeepRec, which holds the rows that changed since "
            "a full one and does not say which; import the next full checkpoint with --delta"
        )
    dynamic, plain = _variables(bundle.index)
    chosen = _chosen(str(paths[0]), dynamic, plain, options)
    return [
        _dynamic(bundle, name, variable, dynamic[variable], options)
        if variable in dynamic
        else _plain(bundle, name, variable, options)
        for name, variable in chosen.items()
    ]


def _prefix(path: Path) -> Path:
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            names = ", ".join(each.name.removesuffix(".index") for each in found) or "none"
            raise NotFound(f"{path}: the checkpoints in it are: {names}; name one, such as {path}/model.ckpt-100")
        path = found[0]
    return path.with_name(path.name.removesuffix(".index"))


def _variables(index: Index) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the embedding variables, with the names of their parts, and the plain tensors (n, dim) of floats."""
    names = {key.decode(errors="replace"): entry for key, entry in index.entries.items() if not key.startswith(b"\x00")}
    found = {
        name.removesuffix("-keys")
        for name, keys in names.items()
        if name.endswith("-keys") and _holds_rows(keys, names.get(f"{name.removesuffix('-keys')}-values"))
    }
    dynamic: dict[str, list[str]] = defaultdict(list)
    for name in sorted(found, key=_part_number):
        match = _PART.fullmatch(name)
        dynamic[match["name"] if match else name].append(name)
    plain = [
        name
        for name, entry in names.items()
        if len(entry.shape) == 2
        and all(entry.shape)
        and DTYPES.get(entry.dtype, "").endswith(("float32", "float16", "float64"))
        and not name.endswith("-values")
    ]
    return _without_slots(dynamic), sorted(_without_slots({name: [] for name in plain}))


def _holds_rows(keys: Entry, values: Entry | None) -> bool:
    """Returns whether tensors are ids and rows. Hash tables of TensorFlow, such as vocabularies, are called so, too."""
    ids, rows = DTYPES.get(keys.dtype, ""), "" if values is None else DTYPES.get(values.dtype, "")
    is_shaped = values is not None and (len(keys.shape), len(values.shape)) == (1, 2)
    return is_shaped and ids in ("int32", "int64") and "float" in rows


def _part_number(name: str) -> tuple[str, int]:
    match = _PART.fullmatch(name)
    return (match["name"], int(match["part"])) if match else (name, 0)


def _without_slots(variables: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leaves out values of optimizers, which are called like their variable, a part of it included, and something."""

    def is_slot(name: str) -> bool:
        parents = name.split("/")
        above = ["/".join(parents[:end]) for end in range(1, len(parents))]
        return ".OPTIMIZER_SLOT" in name or any(
            parent in variables or any(parent in parts for parts in variables.values()) for parent in above
        )

    return {name: parts for name, parts in variables.items() if not is_slot(name)}


def _chosen(what: str, dynamic: dict[str, list[str]], plain: Sequence[str], options: ImportOptions) -> dict[str, str]:
    """Returns the variable of each table."""
    short = {name: table_name(name.removesuffix(_ATTRIBUTES)[-64:]) for name in [*dynamic, *plain]}
    likely = [*dynamic, *(name for name in plain if "emb" in name.lower())]
    if not likely and not options.only:
        raise InvalidInput(
            f"{what}: no embedding variable, and no variable that is called like an embedding; those of shape [n, dim] "
            f"are {', '.join(plain[:20]) or 'none'}. --only names tables",
            field="only",
        )
    return chosen_tensors(what, short, likely, options)


def _dynamic(bundle: Bundle, name: str, variable: str, parts: list[str], options: ImportOptions) -> FileTable:
    numbers = [int(match["part"]) for part in parts if (match := _PART.fullmatch(part))]
    if numbers and numbers != list(range(len(parts))):
        raise InvalidInput(f"{bundle.prefix}.index: of {variable!r} there are the parts {numbers}; one is missing")
    read: list[Part] = []
    left_out: list[str] = []
    for part in parts:
        counts: Array | None = None
        if (entry := bundle.index.entries.get(f"{part}-freqs".encode())) is not None and entry.shape[:1] != (0,):
            counts = bundle.tensor(f"{part}-freqs")
        rows = bundle.tensor(f"{part}-values")
        read.append(Part(f"{bundle.prefix}, {part}", bundle.tensor(f"{part}-keys"), rows, counts))
        if f"{part}-keys_filtered".encode() in bundle.index.entries:
            left_out.append("keys_filtered: ids that were counted and have no row yet")
        if f"{part}-versions".encode() in bundle.index.entries:
            left_out.append("versions: the steps of the last changes")
    return table_of_parts(name, read, options, source=variable, left_out=tuple(dict.fromkeys(left_out)))


def _plain(bundle: Bundle, name: str, variable: str, options: ImportOptions) -> FileTable:
    rows = bundle.tensor(variable)
    parts = [Part(f"{bundle.prefix}, {variable}", Numbers(rows.rows), rows)]
    count = len({place[0] for place in bundle.index.entries[variable.encode()].slices})
    strategy = (
        f"partition_strategy, which the file does not say: rows of its {count} partitions are numbered as by 'div'; "
        "where ids were looked up by 'mod', the default of tf.compat.v1.nn.embedding_lookup, they belong to other ids"
    )
    return table_of_parts(name, parts, options, source=variable, left_out=(strategy,) if count > 1 else ())


def _crc(file: Path, entry: Entry) -> int:
    crc, left = 0, entry.size
    with file.open("rb") as opened:
        opened.seek(entry.offset)
        while left and (data := opened.read(min(left, _CHECKED_BYTES))):
            crc = crc32c(data, crc)
            left -= len(data)
    return crc


KIND = Kind(
    "tf-checkpoint",
    "Checkpoints of TensorFlow and DeepRec: .index and .data files.",
    """Publish the embedding tables of a checkpoint of TensorFlow, DeepRec or Keras (version 2, with an .index file).

    PATH is its prefix, such as train/model.ckpt-100, or a folder with one checkpoint. Embedding variables of DeepRec
    keep their ids, and frequencies if they were saved; the rows of other variables are numbered. Values of optimizers
    are left out. Every byte that is read is compared with its checksum. Without --only all embedding variables are
    imported, and variables that are called like embeddings.
    """,
    """\b
Examples:
  emberline import tf-checkpoint train/model.ckpt-100 --check
  emberline import tf-checkpoint train/model.ckpt-100 --only user_embedding --repository build/models --name shop""",
    open_files,
    (),
)
