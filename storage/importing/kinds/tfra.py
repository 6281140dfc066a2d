"""Tables of TensorFlow Recommenders-Addons: raw files of keys and values, as its FileSystemSaver writes them.

Layout as in TFRA 0.8: `NAME_mht_IofN_rankR_sizeS-keys` holds int64 and `...-values` the rows, for each of N shards of
each of S processes. Files of other names are taken, too, if they end in -keys and -values.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from storage.errors import InvalidInput, NotFound
from storage.importing.arrays import Part, table_of_parts
from storage.importing.files import RawArray, files_below
from storage.importing.kinds.base import Kind
from storage.importing.kinds.dynamicemb import width_of
from storage.importing.options import ImportOptions
from storage.importing.source import FileTable, table_name

_SHARD = re.compile(r"(?P<name>.+)_mht_(?P<shard>[0-9]+)of(?P<shards>[0-9]+)_rank(?P<rank>[0-9]+)_size(?P<size>[0-9]+)")
# What the names of the tables of optimizers have behind the name of the table that they train.
_SLOT = re.compile(r"(?i)_DynamicEmbedding_|[/_-](adam|adagrad|ftrl|momentum|rmsprop|lamb|adamw)([/_-]|$)")


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of folders, at any depth."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for file in files_below(path, "*-keys"):
            stem = file.with_name(file.name.removesuffix("-keys"))
            match = _SHARD.fullmatch(stem.name)
            found[match["name"] if match else stem.name].append(stem)
    if not found:
        raise NotFound(f"{paths[0]}: no files that end in -keys in it")
    slots = [name for name in found if _SLOT.search(name)]
    return [
        _table(name, stems, [slot for slot in slots if slot.startswith(name)], options)
        for name, stems in found.items()
        if name not in slots
    ]


def _table(found: str, stems: list[Path], slots: Sequence[str], options: ImportOptions) -> FileTable:
    name = table_name(found.removesuffix("-parameter"))
    _check_shards(name, stems)
    parts: list[Part] = []
    dim = options.dim(name)
    for stem in stems:
        keys = RawArray.of_file(stem.with_name(f"{stem.name}-keys"), "int64")
        values = stem.with_name(f"{stem.name}-values")
        dim = dim or width_of(name, values, keys.rows, options.dtype)
        if dim is not None:
            parts.append(Part(f"{stem}-*", keys, RawArray.of_file(values, options.dtype, dim)))
    if not parts:
        raise InvalidInput(f"table {name!r}: its files hold no row; --dim says how many values one has")
    left_out = tuple(f"{slot}: the optimizer's" for slot in slots)
    return table_of_parts(name, parts, options, dim=dim, left_out=left_out)


def _check_shards(name: str, stems: list[Path]) -> None:
    """Raises InvalidInput unless all shards of all processes are there, each once."""
    matches = [match for stem in stems if (match := _SHARD.fullmatch(stem.name))]
    if not matches:
        if len(stems) > 1:
            raise InvalidInput(f"table {name!r}: it is in {stems[0].parent} and {stems[1].parent}; import one of them")
        return
    numbers = {(int(match["shards"]), int(match["size"])) for match in matches}
    if len(numbers) > 1 or len({stem.parent for stem in stems}) > 1:
        raise InvalidInput(f"table {name!r}: {stems[0].parent} and {stems[-1].parent} hold several exports; keep one")
    shards, size = numbers.pop()
    there = {(int(match["shard"]), int(match["rank"])) for match in matches}
    missing = sorted({(shard + 1, rank) for shard in range(shards) for rank in range(size)} - there)
    if missing:
        shard, rank = missing[0]
        raise InvalidInput(
            f"table {name!r}: the shard {shard} of {shards} of the process {rank} of {size} is missing in "
            f"{stems[0].parent}"
        )


KIND = Kind(
    "tfra",
    "Tables of TensorFlow Recommenders-Addons: -keys and -values.",
    """Publish tables of TensorFlow Recommenders-Addons.

    A PATH is a folder that the FileSystemSaver wrote; tables are found at any depth, and all shards must be there.
    Values are float32 unless --dtype says otherwise. Tables of optimizers are left out.
    """,
    """\b
Examples:
  emberline import tfra export/TFADE --check
  emberline import tfra export/TFADE --dtype float16 --repository build/models --name shop""",
    open_files,
    ("dtype",),
)
