"""Dumps of NVIDIA dynamicemb: raw files of keys, values and scores for each table and rank.

Layout as in recsys-examples of August 2026: `T_emb_keys.rank_R.world_size_W` holds int64, `T_emb_values...` the rows,
`T_emb_scores...` one or more int64 a row, and `T_opt_args.json` the eviction strategy. The dtype of values stands
nowhere; float32 is what dumps have.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from storage.checkpoint.strict_json import parse_json
from storage.errors import InvalidInput, NotFound
from storage.importing.arrays import Part, table_of_parts
from storage.importing.files import RawArray, file_size, files_below, item_bytes
from storage.importing.kinds.base import Kind
from storage.importing.options import ImportOptions
from storage.importing.source import FileTable, table_name

_KEYS = re.compile(r"(?P<table>.+)_emb_keys\.rank_(?P<rank>[0-9]+)\.world_size_(?P<size>[0-9]+)")
_MAX_JSON_BYTES = 1 << 20


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of folders, at any depth."""
    found: dict[tuple[Path, str], list[tuple[int, int]]] = defaultdict(list)
    for path in paths:
        for file in files_below(path, "*_emb_keys.rank_*.world_size_*"):
            if match := _KEYS.fullmatch(file.name):
                found[file.parent, match["table"]].append((int(match["rank"]), int(match["size"])))
    if not found:
        raise NotFound(f"{paths[0]}: no files called TABLE_emb_keys.rank_R.world_size_W in it")
    names = [table for _, table in found]
    tables: list[FileTable] = []
    for (folder, table), ranks in found.items():
        # Two modules may have a table of one name.
        name = table if names.count(table) == 1 else f"{folder.name}_{table}"
        tables.append(_table(folder, table, table_name(name), ranks, options))
    return tables


def check_ranks(name: str, folder: Path, ranks: Sequence[tuple[int, int]]) -> None:
    """Raises InvalidInput unless all ranks of one dump are there. ranks: rank and world size of each file."""
    sizes = sorted({size for _, size in ranks})
    if len(sizes) > 1:
        raise InvalidInput(
            f"table {name!r}: {folder} holds dumps of {' and of '.join(map(str, sizes))} ranks; keep those of one"
        )
    missing = sorted(set(range(sizes[0])) - {rank for rank, _ in ranks})
    if missing:
        raise InvalidInput(
            f"table {name!r}: {folder} has no files of rank {', '.join(map(str, missing))} of {sizes[0]}; a shard is "
            "missing"
        )


def _table(folder: Path, table: str, name: str, ranks: list[tuple[int, int]], options: ImportOptions) -> FileTable:
    check_ranks(name, folder, ranks)
    left_out: list[str] = []
    counts_used = _counts_used(folder / f"{table}_opt_args.json")
    parts: list[Part] = []
    dim = options.dim(name)
    for rank, size in sorted(ranks):
        end = f".rank_{rank}.world_size_{size}"
        keys = RawArray.of_file(folder / f"{table}_emb_keys{end}", "int64")
        values, scores = folder / f"{table}_emb_values{end}", folder / f"{table}_emb_scores{end}"
        dim = dim or width_of(name, values, keys.rows, options.dtype)
        if dim is None:
            continue  # a rank without rows says nothing
        counts = None
        if scores.exists() and not counts_used:
            left_out.append("scores: times or steps, and no use counts")
        elif scores.exists():
            per_row = width_of(name, scores, keys.rows, "int64")
            if per_row == 1:
                counts = RawArray.of_file(scores, "int64")
            elif per_row is not None:
                left_out.append(f"scores: {per_row} of each row, and not one use count")
        parts.append(
            Part(str(folder / f"{table}_emb_*{end}"), keys, RawArray.of_file(values, options.dtype, dim), counts)
        )
        if (folder / f"{table}_emb_opt_values{end}").exists():
            left_out.append("opt_values: the optimizer's")
    if not parts:
        raise InvalidInput(f"table {name!r}: {folder} holds no row of it; --dim says how many values one has")
    return table_of_parts(name, parts, options, dim=dim, left_out=tuple(dict.fromkeys(left_out)))


def width_of(name: str, values: Path, rows: int, dtype: str) -> int | None:
    """Returns how many values a row has, by the size of a raw file; None for a file without rows.

    Raises InvalidInput when the file does not hold as many rows.
    """
    size = file_size(values)
    if rows == size == 0:
        return None
    if not rows or not size or size % (rows * item_bytes(dtype)):
        raise InvalidInput(
            f"table {name!r}: {values} has {size:,} bytes, which {rows:,} rows of {dtype} do not fill evenly; a file "
            "is cut off, or --dtype is another"
        )
    return size // (rows * item_bytes(dtype))


def _counts_used(meta: Path) -> bool:
    """Returns whether scores are how often an id was used."""
    if not meta.exists():
        return False
    if file_size(meta) > _MAX_JSON_BYTES:
        raise InvalidInput(f"{meta}: {file_size(meta):,} bytes are too many for a description")
    content = parse_json(meta.read_bytes(), what=str(meta), max_bytes=_MAX_JSON_BYTES)
    strategy = content.get("evict_strategy") if isinstance(content, dict) else None
    return isinstance(strategy, str) and strategy.rpartition(".")[2].lower() == "klfu"


KIND = Kind(
    "dynamicemb",
    "Dumps of NVIDIA dynamicemb: keys, values and scores by rank.",
    """Publish tables that NVIDIA dynamicemb dumped.

    A PATH is a folder that DynamicEmbDump wrote; tables are found at any depth, and all ranks must be there. Values are
    float32 unless --dtype says otherwise. Scores become frequencies if the tables evicted by use (kLfu).
    """,
    """\b
Examples:
  emberline import dynamicemb dump/ --check
  emberline import dynamicemb dump/ --dtype bfloat16 --only item --repository build/models --name shop""",
    open_files,
    ("dtype",),
)
