"""Writes and opens published checkpoints: written once, opened only when every byte is what was published.

docs/format.md describes the files. Nothing here loads torch until a graph is written or opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.delta_reader import PublishedDelta, open_delta
from storage.checkpoint.delta_writer import DeltaTable, write_delta
from storage.checkpoint.deltas import list_deltas, next_sequence
from storage.checkpoint.golden import Golden
from storage.checkpoint.manifest import GraphInput, GraphOutput, Manifest
from storage.checkpoint.reader import PublishedVersion, open_version
from storage.checkpoint.tables import Shard, TableData
from storage.checkpoint.writer import write_version
from storage.lazy import lazy_names

if TYPE_CHECKING:
    from storage.checkpoint.graph import DenseGraph

__all__ = [
    "DeltaManifest",
    "DeltaTable",
    "DenseGraph",
    "Golden",
    "GraphInput",
    "GraphOutput",
    "Manifest",
    "PublishedDelta",
    "PublishedVersion",
    "Shard",
    "TableData",
    "list_deltas",
    "next_sequence",
    "open_delta",
    "open_version",
    "write_delta",
    "write_version",
]


__getattr__ = lazy_names(__name__, {"DenseGraph": "storage.checkpoint.graph"})
