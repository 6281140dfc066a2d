"""The bounds of a store beside its DRAM budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.tiers.ssd.options import SsdOptions


@dataclass(frozen=True)
class StoreLimits:
    """promotion_depth: reads that wait to be taken into DRAM; one more is left out. negative_ids: absent ids
    remembered, over all tables. overlay_bytes: past it, the rows of a staged delta go to SSD and are served from there.
    hot_ids: of the list of what is in DRAM, which is saved every hot_ids_every_s and at the end. balance_every_s: how
    often bytes may move between row sizes.
    """

    promotion_depth: int = 256
    negative_ids: int = 1 << 18
    ssd: SsdOptions = field(default_factory=SsdOptions)
    overlay_bytes: int = 256 << 20
    hot_ids: int = 1 << 22
    hot_ids_every_s: float = 300.0
    balance_every_s: float = 10.0
