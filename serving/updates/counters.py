"""What the updates of one model did so far, for the metrics page."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class UpdateCounters:
    """Counts since the server started, and the current state.

    refused: class of the error -> how many versions and deltas. last_visible_ms: of the newest delta, from
    its appearance in the folder until requests saw it. waiting: what is waited for, None for nothing.
    store_rebuilding: a store is damaged, and another is filled to take its place; stores_rebuilt: how often one did.
    merge_failing: the last merge failed, and is tried again. dram_bytes: the
    DRAM budget, None without one.
    """

    deltas_applied: int = 0
    versions_loaded: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    rollbacks: int = 0
    merges: int = 0
    merge_failures: int = 0
    merge_failing: bool = False
    last_visible_ms: float = 0.0
    last_delta_rows: int = 0
    overlays: int = 0
    overlay_bytes: int = 0
    stores_rebuilt: int = 0
    store_rebuilding: bool = False
    held: int = 0
    waiting: str | None = None
    dram_bytes: int | None = None
