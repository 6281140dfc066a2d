"""Defines what each format does: it tells the columns and the blocks of a file, and reads some columns of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from storage.data.files import DataFile
from storage.data.options import DataOptions


@dataclass(frozen=True)
class Block:
    """Rows of a file that are read at once: a row group, a stripe, a record batch, or some lines."""

    rows: int
    #: The number of the block in its file; of text, the offset of its first byte.
    start: int
    #: Of text, the offset after its last byte.
    end: int = 0
    #: Of text, the number of its first line, from 1.
    line: int = 0


@dataclass(frozen=True)
class Content:
    """The content of a file."""

    #: The pyarrow schema of all columns.
    schema: Any
    blocks: tuple[Block, ...]
    #: The types of the wanted columns that can be read as dictionaries, for less than as the values they stand for.
    encoded: Mapping[str, Any] = field(default_factory=dict)


class FileFormat(Protocol):
    """A format of files. Errors of pyarrow and of the operating system are the caller's to translate."""

    def content(
        self,
        file: DataFile,
        options: DataOptions,
        hints: Mapping[str, Any] | None,
        known: Sequence[Block] | None,
    ) -> Content:
        """Finds the columns and the blocks of a file.

        hints: Arrow types of the columns of text that are wanted, None for those to infer; no mapping when every column
        is wanted. known: the blocks, where they are remembered.
        """
        ...

    def read(self, file: DataFile, options: DataOptions, block: Block, schema: Any) -> Any:
        """Reads the columns of `schema`, which the file has, as a pyarrow Table."""
        ...

    def place_of(self, file: DataFile, options: DataOptions, block: Block, row: int) -> str:
        """Returns where a row of a block stands in its file, for people; the block where that is not known (-1)."""
        ...
