"""The SSD tier holds page files and changes on top of them. Each name loads its module, and RocksDB, at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy import lazy_names

if TYPE_CHECKING:
    from storage.tiers.ssd.options import SsdOptions
    from storage.tiers.ssd.reads import RowRead
    from storage.tiers.ssd.tier import SsdTier

__all__ = ["RowRead", "SsdOptions", "SsdTier"]

__getattr__ = lazy_names(
    __name__,
    {
        "RowRead": "storage.tiers.ssd.reads",
        "SsdOptions": "storage.tiers.ssd.options",
        "SsdTier": "storage.tiers.ssd.tier",
    },
)
