"""The manifest of a published version: what it holds, and the size and digest of every file.

The file is canonical JSON (sorted keys, no spaces, a newline) and carries a digest of itself, so that one changed byte
anywhere in a version, the manifest included, is noticed. Its JSON schema is docs/manifest.schema.json.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.errors import IntegrityError, UnsafeArtifact

MANIFEST = "manifest.json"
GRAPH = "dense.pt2"
WEIGHTS = "dense.safetensors"
FEATURES = "features.json"
GOLDEN = "golden.safetensors"
FORMAT = "emberline-checkpoint-1"
MAX_MANIFEST_BYTES = 16 << 20

# Every path that a version may hold. No separator but the one behind "tables", no "..", nothing absolute.
PATH_PATTERN = (
    r"^(dense\.pt2|dense\.safetensors|features\.json|golden\.safetensors"
    r"|tables/[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\.[0-9]{5}-of-[0-9]{5}\.safetensors)$"
)
TABLE_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$"

TensorDtype = Literal["FP32", "FP64", "INT64", "INT32", "BOOL"]
# A dimension; -1 is the batch and only the first may be.
Shape = Annotated[tuple[Annotated[int, Field(ge=-1, lt=2**31)], ...], Field(min_length=1, max_length=8)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(_Part):
    """One file of the version."""

    path: str = Field(pattern=PATH_PATTERN)
    size: int = Field(ge=0, lt=2**63)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class TableEntry(_Part):
    """One embedding table and the files that hold its rows, in ascending order of ids."""

    name: str = Field(pattern=TABLE_PATTERN)
    dim: int = Field(ge=1, le=4096)
    row_type: Literal["fp32"] = "fp32"
    rows: int = Field(ge=0, lt=2**48)
    shards: tuple[str, ...] = Field(min_length=1)


class GraphInput(_Part):
    """One input of the dense graph, and where its values come from.

    source: the dense group for kind "dense", the feature's name for the others. shape: -1 first, the batch.
    placeholder: the program's own name of the input; filled in when the version is written.
    """

    name: str = Field(min_length=1, max_length=512)
    kind: Literal["dense", "pooled", "rows", "lengths", "mask"]
    source: str = Field(min_length=1, max_length=512)
    shape: Shape
    dtype: TensorDtype = "FP32"
    placeholder: str = Field(default="", max_length=256)

    @model_validator(mode="after")
    def _batch_first(self) -> GraphInput:
        _check_batch_first(self.name, self.shape)
        return self


class GraphOutput(_Part):
    """One output of the dense graph. shape: -1 first, the batch."""

    name: str = Field(min_length=1, max_length=512)
    shape: Shape
    dtype: TensorDtype = "FP32"

    @model_validator(mode="after")
    def _batch_first(self) -> GraphOutput:
        _check_batch_first(self.name, self.shape)
        return self


class GraphEntry(_Part):
    """The dense graph's interface and the torch that wrote it."""

    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...] = Field(min_length=1)
    torch_version: str = Field(max_length=64)


class GoldenEntry(_Part):
    """How many golden rows there are, and how far a score may be from the trainer's."""

    batch: int = Field(ge=1, lt=2**31)
    tolerance: float = Field(gt=0, lt=1)


class Manifest(_Part):
    """The whole manifest. Every file of the version but the manifest itself stands in `files`."""

    format: Literal["emberline-checkpoint-1"] = "emberline-checkpoint-1"
    snapshot: str = Field(pattern=r"^[0-9a-f]{32}$", description="random identity of this snapshot")
    parent: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$", description="snapshot it was made from")
    version: int = Field(ge=1, lt=2**63)
    created_unix: int = Field(ge=0, lt=2**40, description="seconds since 1970")
    max_batch_size: int = Field(ge=1, lt=2**31)
    files: tuple[FileEntry, ...]
    tables: tuple[TableEntry, ...]
    graph: GraphEntry
    golden: GoldenEntry
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$", description="sha256 without this field")

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        paths = [entry.path for entry in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("files: a path stands twice")
        for table in self.tables:
            expected = shard_paths(table.name, len(table.shards))
            if list(table.shards) != expected:
                raise ValueError(f"tables: the shards of {table.name!r} are not {expected[0]} and so on")
        wanted = {GRAPH, WEIGHTS, FEATURES, GOLDEN, *(path for table in self.tables for path in table.shards)}
        if set(paths) != wanted:
            raise ValueError(f"files: expected exactly {sorted(wanted)}, got {sorted(paths)}")
        for what, names in (
            ("tables", [table.name for table in self.tables]),
            ("graph.inputs", [entry.name for entry in self.graph.inputs]),
            ("graph.outputs", [entry.name for entry in self.graph.outputs]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: a name stands twice")
        return self

    def to_bytes(self) -> bytes:
        """The file's bytes, digest filled in."""
        content = self.model_dump(mode="json")
        content["digest"] = _digest_of(content)
        return canonical_json(content)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Reads and checks a manifest. Raises IntegrityError when a byte changed, UnsafeArtifact for a bad content."""
        content = parse_json(data, what=MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
        if not isinstance(content, dict):
            raise UnsafeArtifact(f"{MANIFEST}: expected a JSON object, got {type(content).__name__}")
        _check_paths(content)
        try:
            manifest = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "manifest"
            raise UnsafeArtifact(f"{MANIFEST}: {where}: {first['msg']}") from None
        if content.get("digest") != _digest_of(content) or canonical_json(content) != data:
            raise IntegrityError(f"{MANIFEST}: its content is not what its digest says; publish or copy it again")
        return manifest


def shard_paths(table: str, count: int) -> list[str]:
    """The file names of a table's shards, in order."""
    return [f"tables/{table}.{index:05d}-of-{count:05d}.safetensors" for index in range(count)]


def file_sha256(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json({k: v for k, v in content.items() if k != "digest"})).hexdigest()


def _check_paths(content: dict[str, Any]) -> None:
    # Ahead of the general validation, so that a path that leaves the folder is named as such.
    files = content.get("files")
    for entry in files if isinstance(files, list) else []:
        path = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(path, str) or not re.fullmatch(PATH_PATTERN, path):
            raise UnsafeArtifact(f"{MANIFEST}: the path {path!r} is not a file that a version may hold")


def _check_batch_first(name: str, shape: tuple[int, ...]) -> None:
    if shape[0] != -1 or -1 in shape[1:] or 0 in shape:
        raise ValueError(f"{name}: the shape {list(shape)} must have -1, the batch, first and only there, and no 0")
