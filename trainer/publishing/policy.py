"""When a trainer publishes, and what: the numbers of the configuration's `publish` section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trainer.publishing.lineage import Lineage

Due = Literal["version", "delta", "cumulative", "compaction"]


@dataclass(frozen=True)
class DeltaPolicy:
    """delta_every_*: a delta after so many steps, rows or seconds; 0 is off.

    cumulative_every: each n-th delta of a version holds all changes since the version; 0 never. version_every_deltas,
    version_at_share: a delta is followed by a full version of the same content after so many deltas, or when the rows
    in those that lead from the version to the newest snapshot exceed this share of the version's, in bytes; 0 is off.
    keep_deltas, keep_versions: what stays in the repository, beside what these need. expire_after: table -> publishes
    after which a row that nobody touched is erased; tables that are not named keep their rows.
    """

    delta_every_steps: int = 0
    delta_every_rows: int = 0
    delta_every_seconds: float = 0.0
    cumulative_every: int = 16
    version_every_deltas: int = 256
    version_at_share: float = 0.5
    keep_deltas: int = 32
    keep_versions: int = 2
    expire_after: Mapping[str, int] = field(default_factory=dict)

    @property
    def publishes_deltas(self) -> bool:
        """Whether a run publishes deltas on its way."""
        return self.delta_every_steps > 0 or self.delta_every_rows > 0 or self.delta_every_seconds > 0

    def delta_due(self, *, steps: int, rows: int, seconds: float) -> bool:
        """Whether it is time for a delta, so many steps, rows and seconds after the last one."""
        return (
            0 < self.delta_every_steps <= steps
            or 0 < self.delta_every_rows <= rows
            or 0 < self.delta_every_seconds <= seconds
        )

    def next_kind(self, lineage: Lineage) -> Due:
        """What comes next on a line. "compaction": a delta, and a version of the same content behind it."""
        if lineage.newest is None:
            return "version"
        if 0 < self.version_every_deltas <= lineage.deltas + 1:
            return "compaction"
        if 0 < self.version_at_share * lineage.version_bytes < lineage.delta_bytes:
            return "compaction"
        if self.cumulative_every and (lineage.deltas + 1) % self.cumulative_every == 0:
            return "cumulative"
        return "delta"
