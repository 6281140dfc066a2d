"""Holds what an object store offers of a model: head.json, which names every version and delta by its manifest.

It is written by compare-and-swap, after all that it names is there. So whoever reads it needs no listing, which is slow
and expensive, and never finds half of something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field, ValidationError

from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.checkpoint.signed import SNAPSHOT_PATTERN, Part
from storage.checkpoint.strict_json import canonical_json, parse_json
from storage.errors import UnsafeArtifact
from storage.objects.served import Served

HEAD = "head.json"
MAX_HEAD_BYTES = 16 << 20
_SHA256 = r"^[0-9a-f]{64}$"


class DeltaObject(Part):
    """A delta that is complete in the store."""

    sequence: int = Field(ge=1, lt=2**63)
    snapshot: str = Field(pattern=SNAPSHOT_PATTERN)
    #: sha256 of its manifest.json.
    manifest: str = Field(pattern=_SHA256)
    #: The sequence whose changes it goes on from; 0 for a cumulative one.
    from_sequence: int = Field(ge=0, lt=2**63)
    #: Bytes of all its files.
    bytes: int = Field(ge=0)


class VersionObject(Part):
    """A version that is complete in the store, with its deltas."""

    version: int = Field(ge=1, lt=10**18)
    snapshot: str = Field(pattern=SNAPSHOT_PATTERN)
    manifest: str = Field(pattern=_SHA256)
    bytes: int = Field(ge=0)
    deltas: tuple[DeltaObject, ...] = ()


class Leaving(Part):
    """A folder that head.json names no longer; its objects are deleted once nobody reads them any more."""

    path: str = Field(pattern=r"^[1-9][0-9]{0,17}(/deltas/[0-9]{6,19})?$")
    since_unix_ms: int = Field(ge=0)


class Head(Part):
    """The content of head.json."""

    format: int = Field(default=1, ge=1, le=1)
    #: Grows by one with every write, so that no two contents have the same tag.
    generation: int = Field(default=0, ge=0)
    #: Ascending by number.
    versions: tuple[VersionObject, ...] = ()
    #: The largest number that a version ever had, so that none is used again.
    last_version: int = Field(default=0, ge=0)
    #: Likewise the largest sequence, of each version that is named.
    last_sequences: dict[str, int] = Field(default_factory=dict)
    leaving: tuple[Leaving, ...] = ()
    #: What the replicas of a fleet serve.
    served: Served = Served()

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Head:
        """Reads what to_bytes gave. Raises UnsafeArtifact for anything else. what: names it in the error."""
        content = parse_json(data, what=what, max_bytes=MAX_HEAD_BYTES)
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            if isinstance(content, dict) and content.get("format") != 1:
                raise UnsafeArtifact(f"{what}: its format is {content.get('format')!r}, this release reads 1") from None
            first = error.errors(include_url=False)[0]
            raise UnsafeArtifact(f"{what}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def to_bytes(self) -> bytes:
        """Returns the file's bytes."""
        return canonical_json(self.model_dump(mode="json"))

    def version(self, number: int) -> VersionObject | None:
        """Returns the version with this number."""
        return next((each for each in self.versions if each.version == number), None)

    def find(self, snapshot: str) -> str:
        """Returns the path of the folder that has this snapshot, such as 3/deltas/000017; "" when there is none."""
        for version in self.versions:
            if version.snapshot == snapshot:
                return str(version.version)
            for delta in version.deltas:
                if delta.snapshot == snapshot:
                    return delta_path(version.version, delta.sequence)
        return ""

    def newest(self) -> str:
        """Returns the path of the newest snapshot's folder: the last delta of the last version; "" before the first."""
        if not self.versions:
            return ""
        last = self.versions[-1]
        return delta_path(last.version, last.deltas[-1].sequence) if last.deltas else str(last.version)

    def named(self, text: str) -> str:
        """Returns the path of the folder of a snapshot, an id or VERSION.SEQUENCE; "" when there is none."""
        number, _, sequence = text.partition(".")
        if not (number.isdecimal() and sequence.isdecimal() and len(text) < 40):
            return self.find(text)
        path = delta_path(int(number), int(sequence)) if int(sequence) else str(int(number))
        return path if self.names(path) else ""

    def snapshot_of(self, path: str) -> str:
        """Returns the snapshot of a folder that is named, such as 3/deltas/000017."""
        return self._named(path).snapshot

    def manifest_of(self, path: str) -> str:
        """Returns the sha256 of the manifest of a folder that is named, such as 3/deltas/000017."""
        return self._named(path).manifest

    def names(self, path: str) -> bool:
        """Returns whether a folder, such as 3/deltas/000017, is published."""
        return self._find(path) is not None

    def _named(self, path: str) -> VersionObject | DeltaObject:
        entry = self._find(path)
        assert entry is not None
        return entry

    def _find(self, path: str) -> VersionObject | DeltaObject | None:
        number, _, delta = path.partition("/")
        version = self.version(int(number))
        if version is None or not delta:
            return version
        return next((each for each in version.deltas if delta_path(version.version, each.sequence) == path), None)

    def with_version(self, entry: VersionObject) -> Head:
        """Returns the head with one more version; the same again changes nothing."""
        there = self.version(entry.version)
        if there is not None and there.snapshot == entry.snapshot:
            return self
        others = [each for each in self.versions if each.version != entry.version]
        return self._changed(
            versions=tuple(sorted([*others, entry], key=lambda each: each.version)),
            last_version=max(self.last_version, entry.version),
            last_sequences={**self.last_sequences, str(entry.version): 0},
        )

    def with_delta(self, number: int, entry: DeltaObject) -> Head:
        """Returns the head with one more delta of a version that it names; the same again changes nothing."""
        version = next(each for each in self.versions if each.version == number)
        if any(each.sequence == entry.sequence for each in version.deltas):
            return self
        deltas = tuple(sorted([*version.deltas, entry], key=lambda each: each.sequence))
        last = max(self.last_sequences.get(str(number), 0), entry.sequence)
        return self._changed(
            versions=tuple(
                each.model_copy(update={"deltas": deltas}) if each.version == number else each for each in self.versions
            ),
            last_sequences={**self.last_sequences, str(number): last},
        )

    def without(self, paths: Iterable[str], now_unix_ms: int) -> Head:
        """Returns the head without these folders, which are leaving from now on."""
        gone = set(paths)
        if not gone:
            return self
        versions = tuple(
            each.model_copy(
                update={
                    "deltas": tuple(
                        delta for delta in each.deltas if delta_path(each.version, delta.sequence) not in gone
                    )
                }
            )
            for each in self.versions
            if str(each.version) not in gone
        )
        inside = [
            delta_path(each.version, delta.sequence)
            for each in self.versions
            if str(each.version) in gone
            for delta in each.deltas
        ]
        numbers = {str(each.version) for each in versions}
        return self._changed(
            versions=versions,
            last_sequences={number: last for number, last in self.last_sequences.items() if number in numbers},
            leaving=(
                *self.leaving,
                *(Leaving(path=path, since_unix_ms=now_unix_ms) for path in sorted({*gone, *inside})),
            ),
        )

    def deleted(self, paths: Iterable[str]) -> Head:
        """Returns the head after the objects of folders that were leaving are deleted."""
        gone = set(paths)
        if not any(each.path in gone for each in self.leaving):
            return self
        return self._changed(leaving=tuple(each for each in self.leaving if each.path not in gone))

    def _changed(self, **update: Any) -> Head:
        return self.model_copy(update=update)


def delta_path(version: int, sequence: int) -> str:
    """Returns the path of a delta's folder within its model's."""
    return f"{version}/{DELTAS}/{sequence_name(sequence)}"


def chain(version: VersionObject) -> list[DeltaObject]:
    """Returns the fewest deltas that lead from a version to its newest snapshot, ascending by sequence.

    Where a delta on the way is missing, the ones after it are returned: a server that has more of them can go on.
    """
    return list(_back(version.deltas))[::-1]


def needed(deltas: Sequence[DeltaObject], keep: int) -> set[int]:
    """Returns the sequences of the newest `keep` deltas, and of those through which these are reached."""
    kept = {delta.sequence for delta in deltas[-keep:]}
    for place in range(len(deltas), max(0, len(deltas) - keep), -1):
        kept |= {delta.sequence for delta in _back(deltas[:place])}
    return kept


def way_to(version: VersionObject, snapshot: str) -> list[DeltaObject]:
    """Returns the fewest deltas that lead from a version to a snapshot of it, ascending by sequence."""
    place = next((place for place, delta in enumerate(version.deltas, 1) if delta.snapshot == snapshot), 0)
    return list(_back(version.deltas[:place]))[::-1]


def leads_to(head: Head, snapshot: str, target: str) -> bool:
    """Returns whether a snapshot lies on the way to another one: it is that, its version, or an earlier delta of it."""
    return snapshot in line_to(head, target)


def line_to(head: Head, target: str) -> list[str]:
    """Returns a snapshot's version, and the deltas of it up to the snapshot; none when it is not published."""
    for version in head.versions:
        line = [version.snapshot, *(delta.snapshot for delta in version.deltas)]
        if target in line:
            return line[: line.index(target) + 1]
    return []


def _back(deltas: Sequence[DeltaObject]) -> Iterable[DeltaObject]:
    by_sequence = {delta.sequence: delta for delta in deltas}
    delta = deltas[-1] if deltas else None
    while delta is not None:
        yield delta
        delta = by_sequence.get(delta.from_sequence) if delta.from_sequence else None
