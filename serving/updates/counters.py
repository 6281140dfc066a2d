"""Counts what the updates of one model did so far, for the metrics page."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class UpdateCounters:
    """Counts since the server started, and the current state."""

    deltas_applied: int = 0
    versions_loaded: int = 0
    #: Number of refused versions and deltas by class of the error.
    refused: dict[str, int] = field(default_factory=dict)
    rollbacks: int = 0
    merges: int = 0
    merge_failures: int = 0
    #: True if the last merge failed, and is tried again.
    merge_failing: bool = False
    #: Milliseconds from the newest delta's appearance in the folder until requests saw it.
    last_visible_ms: float = 0.0
    last_delta_rows: int = 0
    overlays: int = 0
    overlay_bytes: int = 0
    #: How often a fresh store took the place of a damaged one.
    stores_rebuilt: int = 0
    #: True if a store is damaged, and another is filled to take its place.
    store_rebuilding: bool = False
    held: int = 0
    #: What is waited for; None for nothing.
    waiting: str | None = None
    #: The DRAM budget; None without one.
    dram_bytes: int | None = None
