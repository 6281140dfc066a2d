"""Tables of embeddings, their tiers, and the published format: everything that trainer and server share.

Importing this package loads neither torch nor RocksDB; each name loads its part when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.checkpoint import (
        DenseGraph,
        Golden,
        GraphInput,
        GraphOutput,
        Manifest,
        PublishedVersion,
        TableData,
        open_version,
        write_version,
    )
    from storage.specs import LookupSpec, TableSpec
    from storage.tiers.ssd import SsdTier
    from storage.tiers.tiered import LookupPlan, LookupResult, StoreStats, TieredStore

_HOMES = {
    "DenseGraph": "storage.checkpoint",
    "Golden": "storage.checkpoint",
    "GraphInput": "storage.checkpoint",
    "GraphOutput": "storage.checkpoint",
    "LookupPlan": "storage.tiers.tiered",
    "LookupResult": "storage.tiers.tiered",
    "LookupSpec": "storage.specs",
    "Manifest": "storage.checkpoint",
    "PublishedVersion": "storage.checkpoint",
    "SsdTier": "storage.tiers.ssd",
    "StoreStats": "storage.tiers.tiered",
    "TableData": "storage.checkpoint",
    "TableSpec": "storage.specs",
    "TieredStore": "storage.tiers.tiered",
    "open_version": "storage.checkpoint",
    "write_version": "storage.checkpoint",
}

__all__ = [
    "DenseGraph",
    "Golden",
    "GraphInput",
    "GraphOutput",
    "LookupPlan",
    "LookupResult",
    "LookupSpec",
    "Manifest",
    "PublishedVersion",
    "SsdTier",
    "StoreStats",
    "TableData",
    "TableSpec",
    "TieredStore",
    "open_version",
    "write_version",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
