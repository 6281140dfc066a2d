"""Contains what trainer and server share: embedding tables, their tiers, and the published format.

Importing this package loads neither torch nor RocksDB; each name loads its part when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy import lazy_names

if TYPE_CHECKING:
    from storage.checkpoint import (
        DeltaManifest,
        DeltaTable,
        DenseGraph,
        Golden,
        GraphInput,
        GraphOutput,
        Manifest,
        PublishedDelta,
        PublishedVersion,
        TableData,
        list_deltas,
        next_sequence,
        open_delta,
        open_version,
        write_delta,
        write_version,
    )
    from storage.specs import LookupSpec, TableSpec
    from storage.tiers.ssd.tier import SsdTier
    from storage.tiers.tiered import LookupPlan, LookupResult, StoreStats, TieredStore

_HOMES = {
    "DeltaManifest": "storage.checkpoint",
    "DeltaTable": "storage.checkpoint",
    "DenseGraph": "storage.checkpoint",
    "Golden": "storage.checkpoint",
    "GraphInput": "storage.checkpoint",
    "GraphOutput": "storage.checkpoint",
    "LookupPlan": "storage.tiers.tiered",
    "LookupResult": "storage.tiers.tiered",
    "LookupSpec": "storage.specs",
    "Manifest": "storage.checkpoint",
    "PublishedDelta": "storage.checkpoint",
    "PublishedVersion": "storage.checkpoint",
    "SsdTier": "storage.tiers.ssd.tier",
    "StoreStats": "storage.tiers.tiered",
    "TableData": "storage.checkpoint",
    "TableSpec": "storage.specs",
    "TieredStore": "storage.tiers.tiered",
    "list_deltas": "storage.checkpoint",
    "next_sequence": "storage.checkpoint",
    "open_delta": "storage.checkpoint",
    "open_version": "storage.checkpoint",
    "write_delta": "storage.checkpoint",
    "write_version": "storage.checkpoint",
}

__all__ = [
    "DeltaManifest",
    "DeltaTable",
    "DenseGraph",
    "Golden",
    "GraphInput",
    "GraphOutput",
    "LookupPlan",
    "LookupResult",
    "LookupSpec",
    "Manifest",
    "PublishedDelta",
    "PublishedVersion",
    "SsdTier",
    "StoreStats",
    "TableData",
    "TableSpec",
    "TieredStore",
    "list_deltas",
    "next_sequence",
    "open_delta",
    "open_version",
    "write_delta",
    "write_version",
]


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
