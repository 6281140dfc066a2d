"""The manifest of a published version says what it holds, and gives the size and the digest of every file.

The file is canonical JSON (sorted keys, no spaces, a newline) and carries a digest of itself, so that one changed byte
anywhere in a version, the manifest included, is noticed. Its JSON schema is docs/manifest.schema.json.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from storage.checkpoint.event_times import EventTimes
from storage.checkpoint.signed import (
    FINGERPRINT_PATTERN,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SNAPSHOT_PATTERN,
    FileEntry,
    Part,
    SignedManifest,
    check_files,
)
from storage.checkpoint.table_kinds import DYNAMIC, TableKind
from storage.errors import ConfigError
from storage.initializers import ABSENT_ZEROS, AbsentRows, Initializer
from storage.specs import RowType, TableSpec

__all__ = [
    "MANIFEST",
    "MAX_MANIFEST_BYTES",
    "FileEntry",
    "GoldenEntry",
    "GraphEntry",
    "GraphInput",
    "GraphOutput",
    "Manifest",
    "TableEntry",
    "file_sha256",
    "shard_paths",
]

GRAPH = "dense.pt2"
WEIGHTS = "dense.safetensors"
FEATURES = "features.json"
GOLDEN = "golden.safetensors"
FORMAT = "emberline-checkpoint-1"
MAX_DESCENT = 4096

TABLE_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$"

TensorDtype = Literal["FP32", "FP64", "INT64", "INT32", "BOOL"]
# A dimension; -1 is the batch and only the first may be.
Shape = Annotated[tuple[Annotated[int, Field(ge=-1, lt=2**31)], ...], Field(min_length=1, max_length=8)]


SnapshotId = Annotated[str, Field(pattern=SNAPSHOT_PATTERN)]
Fingerprint = Annotated[str, Field(pattern=FINGERPRINT_PATTERN)]


class AbsentEntry(Part):
    """Says what ids without a row read as: values that follow from seed and id alone (docs/format.md)."""

    type: Literal["constant", "uniform", "normal", "truncated_normal"]
    scale: float = Field(description="the constant, half the width, or the standard deviation; not 0")
    seed: str = Field(default="", pattern=r"^([0-9a-f]{16})?$", description="uint64; empty for a constant")

    @model_validator(mode="after")
    def _possible(self) -> AbsentEntry:
        if self.scale == 0 or (self.type == "constant") != (self.seed == ""):
            raise ValueError(
                f"absent: {self.type} of scale {self.scale} and seed {self.seed!r} is written by no publisher"
            )
        try:
            self.rows  # noqa: B018  checks the scale
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @classmethod
    def of(cls, absent: AbsentRows) -> AbsentEntry | None:
        """Returns the entry of absent rows; None for zeros."""
        kind, seed = absent.initializer.kind, absent.seed
        if absent.is_zero or kind == "zeros":
            return None
        return cls(type=kind, scale=absent.initializer.scale, seed="" if kind == "constant" else f"{seed:016x}")

    @property
    def rows(self) -> AbsentRows:
        """The absent rows that it describes."""
        return AbsentRows.of(Initializer(self.type, self.scale), int(self.seed or "0", 16))


class TableEntry(Part):
    """One embedding table and the files that hold its rows, in ascending order of ids."""

    name: str = Field(pattern=TABLE_PATTERN)
    dim: int = Field(ge=1, le=4096)
    row_type: RowType = "fp32"
    rows: int = Field(ge=0, lt=2**48)
    kind: TableKind = DYNAMIC
    shards: tuple[str, ...] = Field(min_length=1)
    fingerprint: Fingerprint | Literal[""] = Field(default="", description="of all rows; empty in older versions")
    absent: AbsentEntry | None = Field(
        default=None, description="what ids without a row read as, in every snapshot of the version; zeros without it"
    )

    @model_validator(mode="after")
    def _consistent(self) -> TableEntry:
        check_shards(self.name, self.shards)
        try:
            self.spec  # noqa: B018  checks that the row type holds the absent rows
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @model_serializer(mode="wrap")
    def _without_zeros(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A version whose absent ids read as zeros is written as before there were others.
        return {key: value for key, value in handler(self).items() if key != "absent" or value is not None}

    @property
    def spec(self) -> TableSpec:
        """The table that it describes."""
        absent = ABSENT_ZEROS if self.absent is None else self.absent.rows
        return TableSpec(self.name, self.dim, self.row_type, self.rows, absent)


class GraphInput(Part):
    """One input of the dense graph, and where its values come from.

    source: the dense group for kind "dense", the feature's name for the others. kind "ids": integers that are not
    looked up, INT64. shape: -1 first, the batch.
    placeholder: the program's own name of the input; filled in when the version is written.
    """

    name: str = Field(min_length=1, max_length=512)
    kind: Literal["dense", "ids", "pooled", "rows", "lengths", "mask"]
    source: str = Field(min_length=1, max_length=512)
    shape: Shape
    dtype: TensorDtype = "FP32"
    placeholder: str = Field(default="", max_length=256)

    @model_validator(mode="after")
    def _batch_first(self) -> GraphInput:
        _check_batch_first(self.name, self.shape)
        if self.kind == "ids" and self.dtype != "INT64":
            raise ValueError(f"{self.name}: ids are INT64, got {self.dtype}")
        return self


class GraphOutput(Part):
    """One output of the dense graph. shape: -1 first, the batch."""

    name: str = Field(min_length=1, max_length=512)
    shape: Shape
    dtype: TensorDtype = "FP32"

    @model_validator(mode="after")
    def _batch_first(self) -> GraphOutput:
        _check_batch_first(self.name, self.shape)
        return self


class GraphEntry(Part):
    """The dense graph's interface and the torch that wrote it."""

    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...] = Field(min_length=1)
    torch_version: str = Field(max_length=64)


class GoldenEntry(Part):
    """Number of golden rows, and the tolerance of a score against the trainer's."""

    batch: int = Field(ge=1, lt=2**31)
    tolerance: float = Field(gt=0, lt=1)
    tolerances: dict[str, float] = Field(
        default={},
        max_length=4096,
        description="tolerance by output; others, and all in older versions, have `tolerance`",
    )

    @model_validator(mode="after")
    def _positive(self) -> GoldenEntry:
        for name, tolerance in self.tolerances.items():
            if not 0.0 < tolerance < math.inf:
                raise ValueError(f"tolerances.{name} is {tolerance}, expected a finite number above 0")
        return self


class Manifest(SignedManifest):
    """The whole manifest of a version. Every file of it but the manifest itself stands in `files`.

    A version is the snapshot `snapshot`, sequence 0 of itself; deltas lead from it to others.
    """

    format: Literal["emberline-checkpoint-1"] = "emberline-checkpoint-1"
    snapshot: str = Field(pattern=SNAPSHOT_PATTERN, description="random identity of this snapshot")
    parent: SnapshotId | None = Field(default=None, description="snapshot it was made from")
    equals: SnapshotId | None = Field(
        default=None, description="snapshot whose rows and weights are exactly those of this version (a compaction)"
    )
    descends_from: tuple[SnapshotId, ...] = Field(
        default=(), max_length=MAX_DESCENT, description="newest snapshots of the trainer's line before this one"
    )
    version: int = Field(ge=1, lt=2**63)
    created_unix: int = Field(ge=0, lt=2**40, description="seconds since 1970")
    created_unix_ms: int = Field(default=0, ge=0, lt=2**50, description="milliseconds since 1970; 0 in older versions")
    max_batch_size: int = Field(ge=1, lt=2**31)
    files: tuple[FileEntry, ...]
    tables: tuple[TableEntry, ...]
    graph: GraphEntry
    dense_fingerprint: Fingerprint | Literal[""] = Field(
        default="", description="of dense.safetensors' weights; empty in older versions"
    )
    golden: GoldenEntry
    events: EventTimes | None = Field(
        default=None, description="times of the rows trained on since the version before; without it, none is known"
    )
    erased_unix_ms: int = Field(
        default=0,
        ge=0,
        lt=2**50,
        description="when ids were last forgotten in the trainer's line: rows of versions from before must not stay",
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Without a column of times, or an id that was forgotten, a version is written as before there were any.
        return {key: value for key, value in handler(self).items() if _says_something(key, value)}

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        check_files(
            self.files, {GRAPH, WEIGHTS, FEATURES, GOLDEN, *(path for table in self.tables for path in table.shards)}
        )
        for what, names in (
            ("tables", [table.name for table in self.tables]),
            ("graph.inputs", [entry.name for entry in self.graph.inputs]),
            ("graph.outputs", [entry.name for entry in self.graph.outputs]),
            ("descends_from", list(self.descends_from)),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: a name stands twice")
        if self.snapshot in (self.parent, self.equals, *self.descends_from):
            raise ValueError("snapshot: stands among the snapshots that it was made from")
        return self

    @property
    def published_unix_ms(self) -> int:
        """The time of publication, in milliseconds since 1970; exact to the second in older versions."""
        return self.created_unix_ms or self.created_unix * 1000


def _says_something(key: str, value: Any) -> bool:
    return value is not None if key == "events" else key != "erased_unix_ms" or value != 0


def shard_paths(table: str, count: int) -> list[str]:
    """Returns the file names of a table's shards, in order."""
    return [f"tables/{table}.{index:05d}-of-{count:05d}.safetensors" for index in range(count)]


def file_sha256(path: Path) -> str:
    """Returns the sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_shards(table: str, shards: tuple[str, ...]) -> None:
    """Raises ValueError unless these are the names of a table's shards, in order."""
    if list(shards) != shard_paths(table, len(shards)):
        raise ValueError(f"tables: the shards of {table!r} are not {shard_paths(table, 1)[0]} and so on")


def _check_batch_first(name: str, shape: tuple[int, ...]) -> None:
    if shape[0] != -1 or -1 in shape[1:] or 0 in shape:
        raise ValueError(f"{name}: the shape {list(shape)} must have -1, the batch, first and only there, and no 0")
