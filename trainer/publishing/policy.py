"""Decides when a trainer publishes, and what: the numbers of the configuration's `publish` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trainer.publishing.lineage import Lineage

Due = Literal["version", "delta", "cumulative", "compaction"]


@dataclass(frozen=True)
class DeltaPolicy:
    """Rules for deltas, versions and retention."""

    #: Steps after which a delta is published; 0 is off.
    delta_every_steps: int = 0
    #: Rows after which a delta is published; 0 is off.
    delta_every_rows: int = 0
    #: Seconds after which a delta is published; 0 is off.
    delta_every_seconds: float = 0.0
    #: The share by which the mean loss of so many rows has risen when a delta is published too; None never.
    on_drift: tuple[float, int] | None = None
    #: Each n-th delta of a version holds all changes since the version; 0 never.
    cumulative_every: int = 16
    #: A delta is followed by a full version of the same content after this many deltas; 0 is off.
    version_every_deltas: int = 256
    #: A full version follows a delta when the rows in the deltas from the version to the newest snapshot exceed this
    #: share of the version's, in bytes; 0 is off.
    version_at_share: float = 0.5
    #: Each n-th delta holds all dense weights, the others what changed in them; 1 for all of them.
    full_weights_every: int = 8
    #: Deltas that stay in the repository, beside those that they need.
    keep_deltas: int = 32
    #: Versions that stay in the repository.
    keep_versions: int = 2
    #: Table -> publishes after which a row that was not touched is erased; tables that are not named keep their rows.
    expire_after: Mapping[str, int] = field(default_factory=dict)

    @property
    def publishes_deltas(self) -> bool:
        """True if a run publishes deltas on its way."""
        return self.delta_every_steps > 0 or self.delta_every_rows > 0 or self.delta_every_seconds > 0

    def delta_due(self, *, steps: int, rows: int, seconds: float) -> bool:
        """Returns whether a delta is due, this many steps, rows and seconds after the last one."""
        return (
            0 < self.delta_every_steps <= steps
            or 0 < self.delta_every_rows <= rows
            or 0 < self.delta_every_seconds <= seconds
        )

    def next_kind(self, lineage: Lineage) -> Due:
        """Returns the kind of the next snapshot. "compaction": a delta, and a version of the same content behind it."""
        if lineage.newest is None:
            return "version"
        if 0 < self.version_every_deltas <= lineage.deltas + 1:
            return "compaction"
        if 0 < self.version_at_share * lineage.version_bytes < lineage.delta_bytes:
            return "compaction"
        if self.cumulative_every and (lineage.deltas + 1) % self.cumulative_every == 0:
            return "cumulative"
        return "delta"
