"""Lists the formats of files by name."""

from __future__ import annotations

from storage.data.formats.base import Block, Content, FileFormat
from storage.data.formats.columnar import Arrow, Memory, Orc, Parquet
from storage.data.formats.delimited import Delimited
from storage.data.formats.libsvm import Libsvm
from storage.data.formats.text_types import text_type

FORMATS: dict[str, FileFormat] = {
    "parquet": Parquet(),
    "csv": Delimited(","),
    "tsv": Delimited("\t"),
    "orc": Orc(),
    "arrow": Arrow(),
    "libsvm": Libsvm(),
    "memory": Memory(),
}
#: The formats whose blocks are known only when all of a file, or much of it, has been read.
SEARCHED = frozenset({"csv", "tsv", "orc", "arrow", "libsvm"})

__all__ = ["FORMATS", "SEARCHED", "Block", "Content", "FileFormat", "text_type"]
