"""The manifest of a delta says which snapshots it continues, what it changes, and the digest of every file.

Its JSON schema is docs/delta-manifest.schema.json.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from storage.checkpoint.event_times import EventTimes
from storage.checkpoint.manifest import (
    GOLDEN,
    MAX_DESCENT,
    TABLE_PATTERN,
    WEIGHTS,
    Fingerprint,
    GoldenEntry,
    SnapshotId,
    check_shards,
)
from storage.checkpoint.signed import SNAPSHOT_PATTERN, FileEntry, Part, SignedManifest, check_files
from storage.checkpoint.weight_difference import DIFFERENCE
from storage.specs import RowType, TableSpec

REMOVED = "removed.safetensors"
DELTA_FORMAT = "emberline-delta-1"
MAX_DEPTH = 64


class DeltaTableEntry(Part):
    """Changes that a delta makes to one table. `rows` changed or new rows, `removed` ids that are no longer there."""

    name: str = Field(pattern=TABLE_PATTERN)
    dim: int = Field(ge=1, le=4096)
    row_type: RowType = Field(default="fp32", description="that of the version")
    rows: int = Field(ge=0, lt=2**48)
    removed: int = Field(ge=0, lt=2**48)
    shards: tuple[str, ...] = Field(description="none when no row changed")
    fingerprint: Fingerprint = Field(description="of the changed rows and the removed ids")

    @model_validator(mode="after")
    def _consistent(self) -> DeltaTableEntry:
        check_shards(self.name, self.shards)
        if (self.rows == 0) != (not self.shards):
            raise ValueError(f"tables: {self.name!r} has {self.rows} rows in {len(self.shards)} shards")
        return self

    @property
    def spec(self) -> TableSpec:
        """The table that it changes; what its absent ids read as stands in the version alone."""
        return TableSpec(self.name, self.dim, self.row_type, self.rows)


class DenseEntry(Part):
    """Names the weights to which a delta's dense weights are a difference."""

    against: SnapshotId = Field(description="the parent, or the version's snapshot")
    depth: int = Field(ge=1, le=MAX_DEPTH, description="differences behind each other since a full copy of the weights")


class DeltaManifest(SignedManifest):
    """The whole manifest of a delta. Every file of it but the manifest itself stands in `files`."""

    format: Literal["emberline-delta-1"] = "emberline-delta-1"
    snapshot: str = Field(pattern=SNAPSHOT_PATTERN, description="the snapshot that it leads to")
    parent: str = Field(pattern=SNAPSHOT_PATTERN, description="the snapshot that the trainer went on from")
    applies_to: tuple[SnapshotId, ...] = Field(
        min_length=1, max_length=MAX_DESCENT, description="the snapshots that this patch turns into `snapshot`"
    )
    version: int = Field(ge=1, lt=2**63)
    base: str = Field(pattern=SNAPSHOT_PATTERN, description="snapshot of the version that it lies in")
    sequence: int = Field(ge=1, lt=2**63, description="its number, never used again")
    from_sequence: int = Field(ge=0, lt=2**63, description="the rows cover all changes after this one")
    created_unix_ms: int = Field(ge=0, lt=2**50, description="milliseconds since 1970")
    files: tuple[FileEntry, ...]
    tables: tuple[DeltaTableEntry, ...]
    dense_fingerprint: Fingerprint = Field(description="of the weights that result")
    dense: DenseEntry | None = Field(
        default=None, description="dense.xor.safetensors is there, in place of all weights; without it, those are"
    )
    golden: GoldenEntry
    events: EventTimes | None = Field(
        default=None, description="times of the rows trained on after `from_sequence`; without it, none is known"
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Without a column of times, and with all weights, a delta is written as before there were others.
        optional = ("events", "dense")
        return {key: value for key, value in handler(self).items() if key not in optional or value is not None}

    @model_validator(mode="after")
    def _consistent(self) -> DeltaManifest:
        dense = WEIGHTS if self.dense is None else DIFFERENCE
        check_files(self.files, {dense, GOLDEN, REMOVED, *(path for table in self.tables for path in table.shards)})
        # A server has the weights of its version, and of the snapshot that it serves: any that the delta applies to.
        usable = {self.base, *(self.applies_to if len(self.applies_to) == 1 else ())}
        if self.dense is not None and self.dense.against not in usable:
            raise ValueError("dense.against: is neither the version nor the only snapshot that the delta applies to")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError("tables: a name stands twice")
        if len(set(self.applies_to)) != len(self.applies_to):
            raise ValueError("applies_to: a snapshot stands twice")
        if self.parent not in self.applies_to:
            raise ValueError("applies_to: does not hold the parent")
        if self.snapshot == self.base or self.snapshot in self.applies_to:
            raise ValueError("snapshot: a delta must lead to another snapshot than those it applies to")
        if self.from_sequence >= self.sequence:
            raise ValueError(f"from_sequence: {self.from_sequence} is not before the sequence {self.sequence}")
        return self

    @property
    def events_since(self) -> str:
        """The snapshot whose events are not in `events`, and all later ones are."""
        return self.base if self.cumulative else self.parent

    @property
    def cumulative(self) -> bool:
        """True if it holds all changes since the version."""
        return self.from_sequence == 0
