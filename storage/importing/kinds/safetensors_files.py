"""safetensors files with a tensor of ids and one of rows. The tensors of a whole module are the kind state-dict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.importing.arrays import Part, table_of_parts
from storage.importing.files import files_of
from storage.importing.kinds.base import Kind, named_paths
from storage.importing.options import ImportOptions, pick
from storage.importing.source import FileTable
from storage.importing.tensor_files import tensors_of


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of files: a table for each path, its shards in a folder."""
    tables: list[FileTable] = []
    for name, places in named_paths(paths, options).items():
        parts: list[Part] = []
        for file in (file for place in places for file in files_of(place, [".safetensors"], what="safetensors files")):
            tensors = tensors_of(file)

            def tensor(option: str, wanted: str, tensors=tensors, file=file):  # type: ignore[no-untyped-def]
                return tensors[pick(wanted, tensors, option=option, what=str(file))]

            counts = tensor("count", options.count) if options.count else None
            parts.append(
                Part(str(file), tensor("id", options.id or "ids"), tensor("row", options.row or "rows"), counts)
            )
        tables.append(table_of_parts(name, parts, options))
    return tables


KIND = Kind(
    "safetensors",
    "safetensors files with a tensor of ids and one of rows.",
    """Publish tables of safetensors files.

    Each PATH, a file or a folder of shards, is a table of that name; with --table all are parts of one. The tensors are
    called ids and rows, or as --id and --row say.
    """,
    """\b
Examples:
  emberline import safetensors item.safetensors --check
  emberline import safetensors items/ --table item --id keys --row values --repository build/models --name shop""",
    open_files,
    ("table", "id", "row", "count"),
)
