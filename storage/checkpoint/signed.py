"""Holds the common parts of manifests of versions and deltas: strict content, canonical bytes, a digest of itself."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.errors import IntegrityError, UnsafeArtifact

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20

# Every path that a version or a delta may hold: no separator but the one after "tables", no "..", nothing absolute.
PATH_PATTERN = (
    r"^(dense\.pt2|dense\.safetensors|dense\.xor\.safetensors|features\.json|golden\.safetensors|removed\.safetensors"
    r"|tables/[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\.[0-9]{5}-of-[0-9]{5}\.safetensors)$"
)
SNAPSHOT_PATTERN = r"^[0-9a-f]{32}$"
FINGERPRINT_PATTERN = r"^[0-9a-f]{16}$"


class Part(BaseModel):
    """A piece of a manifest: no unknown key, no value of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(Part):
    """One file of the folder."""

    path: str = Field(pattern=PATH_PATTERN)
    size: int = Field(ge=0, lt=2**63)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SignedManifest(Part):
    """A manifest that carries the sha256 of its own canonical JSON."""

    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$", description="sha256 without this field")

    def to_bytes(self) -> bytes:
        """Returns the file's bytes, digest filled in."""
        content = self.model_dump(mode="json")
        content["digest"] = digest_of(content)
        return canonical_json(content)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
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
        if content.get("digest") != digest_of(content) or canonical_json(content) != data:
            raise IntegrityError(f"{MANIFEST}: its content is not what its digest says; publish or copy it again")
        return manifest


def digest_of(content: dict[str, Any]) -> str:
    """Returns the digest of a manifest's content, whatever it says in `digest`."""
    return hashlib.sha256(canonical_json({k: v for k, v in content.items() if k != "digest"})).hexdigest()


def check_files(files: tuple[FileEntry, ...], wanted: set[str]) -> None:
    """Raises ValueError unless `files` names each of `wanted` once and nothing else."""
    paths = [entry.path for entry in files]
    if len(set(paths)) != len(paths):
        raise ValueError("files: a path stands twice")
    if set(paths) != wanted:
        raise ValueError(f"files: expected exactly {sorted(wanted)}, got {sorted(paths)}")


def _check_paths(content: dict[str, Any]) -> None:
    # The check runs before the general validation, so that a path that leaves the folder is named as such.
    files = content.get("files")
    for entry in files if isinstance(files, list) else []:
        path = entry.get("path") if isinstance(entry, dict) else None
        if not isinstance(path, str) or not re.fullmatch(PATH_PATTERN, path):
            raise UnsafeArtifact(f"{MANIFEST}: the path {path!r} is not a file that a version may hold")
