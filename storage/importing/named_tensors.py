"""Chooses the tables among the tensors of a module: rows by number, under the names that modules give them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from storage.errors import InvalidInput, Unsupported
from storage.features.strict_model import did_you_mean
from storage.importing.arrays import Array, Part, table_of_parts
from storage.importing.options import ImportOptions
from storage.importing.source import FileTable, table_name

# EmbeddingBagCollection and EmbeddingCollection of TorchRec call their tables so.
_COLLECTION = re.compile(r"(?:^|.*\.)(?:embedding_bags|embeddings)\.(?P<table>[^.]+)\.weight")
_EMBEDDING = re.compile(r"(?i)(?P<table>.*emb.*)\.weight")


@dataclass(frozen=True)
class Numbers:
    """The ids of rows without any: their numbers."""

    rows: int
    width: int = 0

    def read(self, part: slice) -> np.ndarray:
        """Returns some of them."""
        return np.arange(part.start, part.stop, dtype=np.int64)


@dataclass(frozen=True)
class Flat:
    """An array (n, 1) as one (n,)."""

    array: Array
    width: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.array.rows

    def read(self, part: slice) -> np.ndarray:
        """Returns some rows."""
        return self.array.read(part).reshape(-1)


def tables_among(tensors: Mapping[str, Array], what: str, options: ImportOptions) -> list[FileTable]:
    """Returns the tables among the tensors of a module. what: the file, for messages.

    Without --only these are the tables of TorchRec's collections, or else all tensors (n, dim) whose names say that
    they are embeddings. --only names tables or tensors. A tensor NAME_id beside a table holds the ids of its rows
    (KVZCH of TorchRec). Raises InvalidInput when there is none, or one that is not there, Unsupported where ids are
    remapped before they are looked up.
    """
    wide = [name for name, array in tensors.items() if array.width]
    chosen = _chosen(wide, what, options)
    tables = []
    for name, tensor in chosen.items():
        _refuse_remapped(tensor, name, tensors, what)
        rows, ids = tensors[tensor], tensors.get(f"{tensor}_id")
        held: Array = Numbers(rows.rows) if ids is None else Flat(ids) if ids.width == 1 else ids
        left_out = tuple(
            f"{other}: of the hash of ids" for other in (f"{tensor.removesuffix('weight')}bucket",) if other in tensors
        )
        parts = [Part(f"{what}, {tensor}", held, rows)]
        tables.append(table_of_parts(name, parts, options, source=tensor, left_out=left_out))
    return tables


def _refuse_remapped(tensor: str, name: str, tensors: Iterable[str], what: str) -> None:
    """Raises Unsupported for a table whose row numbers are not the ids of requests (ZCH of TorchRec)."""
    match, prefix = _COLLECTION.fullmatch(tensor), tensor.partition("_embedding_module.")[0]
    module = f"{prefix}_managed_collision_collection._managed_collision_modules.{match['table'] if match else name}."
    if any(each.startswith(module) for each in tensors):
        raise Unsupported(
            f"{what}: the ids of the table {name!r} are remapped by {module[:-1]}, so the number of a row is not its "
            "id; write raw ids and rows to another file, such as Parquet, and import that. --only names other tables"
        )


def _chosen(tensors: Iterable[str], what: str, options: ImportOptions) -> dict[str, str]:
    """Returns the tensor of each table."""
    tensors = sorted(tensors)
    likely = {name: match["table"] for name in tensors if (match := _COLLECTION.fullmatch(name))}
    if not likely:
        likely = {name: match["table"] for name in tensors if (match := _EMBEDDING.fullmatch(name))}
    if not likely and not options.only:
        shown = ", ".join(tensors[:20]) or "none"
        raise InvalidInput(
            f"{what}: no tensor is called like an embedding; the tensors [n, dim] are {shown}. --only names tables",
            field="only",
        )
    names = {tensor: table_name(likely.get(tensor, tensor.removesuffix(".weight"))) for tensor in tensors}
    uses = Counter(names[tensor] for tensor in likely)
    for tensor in likely:
        if uses[names[tensor]] > 1:
            names[tensor] = table_name(tensor.removesuffix(".weight"))
    return chosen_tensors(what, names, likely, options)


def chosen_tensors(
    what: str, names: Mapping[str, str], likely: Collection[str], options: ImportOptions
) -> dict[str, str]:
    """Returns the tensor of each table that is imported: those of --only, by the name of either, or the likely ones.

    names: the table of every tensor. Raises InvalidInput for a name that is not there, and for two tensors that would
    be one table.
    """
    chosen = list(likely)
    if options.only:
        chosen = []
    for name in options.only:
        groups = ([tensor for tensor in group if names[tensor] == name] for group in (likely, names))
        found = [name] if name in names else next(filter(None, groups), [])
        if not found:
            hint = did_you_mean(name, {*names.values(), *names})
            raise InvalidInput(f"--only: {what} has no table or tensor {name!r}{hint}", field="only")
        chosen += found
    tables: dict[str, str] = {}
    for tensor in dict.fromkeys(chosen):
        if (name := names[tensor]) in tables:
            raise InvalidInput(
                f"{what}: the tensors {tables[name]!r} and {tensor!r} would both be called {name!r}; import one of "
                "them with --only TENSOR, or rename one",
                field="only",
            )
        tables[name] = tensor
    return tables
