"""Defines the bounds of a store other than its DRAM budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.tiers.ssd.options import SsdOptions


@dataclass(frozen=True)
class StoreLimits:
    """The bounds of a store other than its DRAM budget."""

    #: The reads that may wait to be installed in DRAM; further ones are dropped.
    promotion_depth: int = 256
    #: The absent ids that are remembered, over all tables.
    negative_ids: int = 1 << 18
    ssd: SsdOptions = field(default_factory=SsdOptions)
    #: The bytes of all overlays past which the rows of a staged delta go to SSD and are served from there.
    overlay_bytes: int = 256 << 20
    #: The most ids on the list of what is in DRAM.
    hot_ids: int = 1 << 22
    #: The seconds between two writes of that list, which is also written when the store is closed.
    hot_ids_every_s: float = 300.0
    #: The seconds after which bytes may move again between row sizes.
    balance_every_s: float = 10.0
