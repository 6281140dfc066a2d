"""Chooses the tables among the tensors of a module: rows by number, under the names that modules give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from storage.errors import InvalidInput
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
    (KVZCH of TorchRec). Raises InvalidInput when there is none, or one that is not there.
    """
    wide = [name for name, array in tensors.items() if array.width]
    chosen = _chosen(wide, what, options)
    tables = []
    for name, tensor in chosen.items():
        rows, ids = tensors[tensor], tensors.get(f"{tensor}_id")
        held: Array = Numbers(rows.rows) if ids is None else Flat(ids) if ids.width == 1 else ids
        left_out = tuple(
            f"{other}: of the hash of ids" for other in (f"{tensor.removesuffix('weight')}bucket",) if other in tensors
        )
        tables.append(table_of_parts(name, [Part(f"{what}, {tensor}", held, rows)], options, left_out=left_out))
    return tables


def _chosen(tensors: Iterable[str], what: str, options: ImportOptions) -> dict[str, str]:
    """Returns the tensor of each table."""
    tensors = sorted(tensors)
    likely = {name: match["table"] for name in tensors if (match := _COLLECTION.fullmatch(name))}
    if not likely:
        likely = {name: match["table"] for name in tensors if (match := _EMBEDDING.fullmatch(name))}
    names = {tensor: likely.get(tensor, tensor.removesuffix(".weight")) for tensor in tensors}
    if options.only:
        known = {table_name(names[tensor]): tensor for tensor in tensors} | {tensor: tensor for tensor in tensors}
        for wanted in options.only:
            if wanted not in known:
                raise InvalidInput(
                    f"--only: {what} has no table or tensor {wanted!r}{did_you_mean(wanted, known)}", field="only"
                )
        likely = {known[wanted]: names[known[wanted]] for wanted in options.only}
    if not likely:
        shown = ", ".join(tensors[:20]) or "none"
        raise InvalidInput(
            f"{what}: no tensor is called like an embedding; the tensors [n, dim] are {shown}. --only names tables",
            field="only",
        )
    short = {tensor: table_name(name) for tensor, name in likely.items()}
    for tensor, name in short.items():
        if list(short.values()).count(name) > 1:
            short[tensor] = table_name(tensor.removesuffix(".weight"))
    tables: dict[str, str] = {}
    for tensor, name in short.items():
        if name in tables:
            raise InvalidInput(
                f"{what}: the tensors {tables[name]!r} and {tensor!r} would both be called {name!r}; import one of "
                "them with --only TENSOR, or rename one",
                field="only",
            )
        tables[name] = tensor
    return tables
