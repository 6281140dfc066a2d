"""The published checkpoint format: written once, opened only when every byte is what was published.

docs/format.md describes the files. Nothing here loads torch until a graph is written or opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.checkpoint.golden import Golden
from storage.checkpoint.manifest import GraphInput, GraphOutput, Manifest
from storage.checkpoint.reader import PublishedVersion, open_version
from storage.checkpoint.tables import Shard, TableData
from storage.checkpoint.writer import write_version

if TYPE_CHECKING:
    from storage.checkpoint.graph import DenseGraph

__all__ = [
    "DenseGraph",
    "Golden",
    "GraphInput",
    "GraphOutput",
    "Manifest",
    "PublishedVersion",
    "Shard",
    "TableData",
    "open_version",
    "write_version",
]


def __getattr__(name: str) -> object:
    if name == "DenseGraph":
        from storage.checkpoint.graph import DenseGraph

        return DenseGraph
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
