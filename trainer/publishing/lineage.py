"""The lineage of a run: which snapshots it published, each made from the one before, and from which state.

The lineage is a value. It lies in every training checkpoint, so that after a crash the trainer knows which snapshot it
had prepared (`pending`) and which changes the next delta must hold (`stamps`: the last stamp of changes that a snapshot
holds, by table).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from storage.errors import CheckpointError, NotFound

# Number of snapshots that a delta can start from (`from_snapshot`); older ones are known by their ids alone.
MAX_PUBLISHED = 512
# The most ids that a version's manifest may name in descends_from.
MAX_ANCESTORS = 4096

Kind = Literal["version", "delta", "cumulative"]


@dataclass(frozen=True)
class Published:
    """One snapshot of the lineage."""

    snapshot: str
    version: int
    #: Number of the delta; 0 for a version itself.
    sequence: int
    #: The last stamp whose changes the snapshot holds, by table.
    stamps: Mapping[str, int]
    #: Fingerprint of the dense weights, hex.
    dense: str = ""

    @property
    def name(self) -> str:
        """The name as shown to users: VERSION.SEQUENCE."""
        return f"{self.version}.{self.sequence}"


@dataclass(frozen=True)
class Pending:
    """A prepared snapshot: drawn, its changes closed, perhaps not written yet."""

    kind: Kind
    snapshot: str
    #: Number of the version as drawn; when another publisher takes it first, the next one is used.
    version: int
    #: Number of the delta as drawn; when another publisher takes it first, the next one is used.
    sequence: int
    #: The snapshot it was made from, "" for the first.
    parent: str
    stamps: Mapping[str, int]
    #: Changes after these stamps are in it, by table.
    since: Mapping[str, int] = field(default_factory=dict)
    #: Sequence that a delta starts from.
    from_sequence: int = 0
    #: Snapshots that a delta applies to.
    applies_to: tuple[str, ...] = ()
    #: The snapshot of a version with the same content that is written behind the delta, "" for none.
    compaction: str = ""
    #: Time at which it was drawn; written again, it gets the same time.
    created_unix_ms: int = 0
    #: The times of the rows that it was trained on, as JSON values; and those of the version behind it.
    events: dict[str, Any] | None = None
    compaction_events: dict[str, Any] | None = None

    @property
    def snapshots(self) -> tuple[str, ...]:
        """Ids of what is written: of the snapshot, and of a version behind it."""
        return tuple(name for name in (self.snapshot, self.compaction) if name)


@dataclass(frozen=True)
class Lineage:
    """The snapshots so far; empty before the first version."""

    #: Number of the version that deltas lie in.
    version: int = 0
    #: Snapshot of that version.
    base: str = ""
    #: Oldest first, the newest MAX_PUBLISHED.
    published: tuple[Published, ...] = ()
    #: Ids of the newest snapshots before those.
    ancestors: tuple[str, ...] = ()
    #: The largest sequence drawn for a delta of `version`.
    last_sequence: int = 0
    #: Bytes of the version's rows.
    version_bytes: int = 0
    #: Bytes of the rows in the deltas from the version to the newest snapshot, so a cumulative one begins anew.
    delta_bytes: int = 0
    #: Deltas published since the version.
    deltas: int = 0
    pending: Pending | None = None
    #: When ids were last forgotten: no version from before may stay. 0 if none were.
    erased_unix_ms: int = 0

    @property
    def newest(self) -> Published | None:
        """The newest snapshot that was written; None before the first."""
        return self.published[-1] if self.published else None

    def find(self, text: str) -> Published:
        """The snapshot called `text`: its id in hex, or VERSION.SEQUENCE. Raises NotFound naming what there is."""
        for entry in reversed(self.published):
            if text in (entry.snapshot, entry.name):
                return entry
        if not self.published:
            raise NotFound(f"snapshot {text!r}: nothing was published yet; publish a version first")
        raise NotFound(
            f"snapshot {text!r} is not among those that a delta can start from: {self.published[0].name} to "
            f"{self.published[-1].name}; give one of them as VERSION.SEQUENCE or by its id, or publish a version"
        )

    def base_of(self, entry: Published) -> Published:
        """Returns the version that a snapshot is a delta of; the entry itself when it is one."""
        # Take the nearest before it: in a repository that was made anew, numbers come again.
        for other in reversed(self.published[: self.published.index(entry) + 1]):
            if other.version == entry.version and other.sequence == 0:
                return other
        raise NotFound(f"snapshot {entry.name}: its version is not known any more; publish a version")

    def up_to(self, snapshot: str) -> Lineage:
        """Returns the lineage as it was when `snapshot` was its newest. Numbers drawn since are not drawn again."""
        entry = self.find(snapshot)
        kept, base = self.published[: self.published.index(entry) + 1], self.base_of(entry)
        deltas = len(kept) - 1 - kept.index(base)
        if base.snapshot == self.base:
            return replace(self, published=kept, deltas=deltas, pending=None)
        # Bytes of an older version are not known here; nothing is then compacted by its share.
        return replace(
            self,
            version=entry.version,
            base=base.snapshot,
            published=kept,
            last_sequence=max(other.sequence for other in self.published if other.version == entry.version),
            version_bytes=0,
            delta_bytes=0,
            deltas=deltas,
            pending=None,
        )

    def of_newest(self) -> Lineage:
        """Returns the lineage after all snapshots but the newest, a version, were removed: none can be gone back to."""
        return replace(self, published=self.published[-1:], ancestors=self.line()[:-1])

    def since_base(self, entry: Published) -> tuple[Published, ...]:
        """Returns a snapshot's version and everything published after it."""
        return self.published[self.published.index(self.base_of(entry)) :]

    def line(self) -> tuple[str, ...]:
        """Ids of all snapshots known, oldest first, at most MAX_ANCESTORS."""
        return (*self.ancestors, *(entry.snapshot for entry in self.published))[-MAX_ANCESTORS:]

    def with_published(self, entry: Published, *, row_bytes: int, cumulative: bool = False) -> Lineage:
        """Returns the lineage with a snapshot that was written. row_bytes: bytes of its rows and removed ids."""
        published = (*self.published, entry)
        cut = max(0, len(published) - MAX_PUBLISHED)
        # A version stays for as long as one of its deltas does: they are found by it.
        first = published[cut].version
        kept = tuple(
            other
            for place, other in enumerate(published)
            if place >= cut or (other.sequence == 0 and other.version == first)
        )
        gone = tuple(other.snapshot for other in published[:cut] if other not in kept)
        ancestors = (*self.ancestors, *gone)[-MAX_ANCESTORS:]
        if entry.sequence == 0:
            erased = self.erased_unix_ms
            return Lineage(entry.version, entry.snapshot, kept, ancestors, 0, row_bytes, 0, 0, None, erased)
        return replace(
            self,
            published=kept,
            ancestors=ancestors,
            last_sequence=max(self.last_sequence, entry.sequence),
            delta_bytes=row_bytes if cumulative else self.delta_bytes + row_bytes,
            deltas=self.deltas + 1,
            pending=None,
        )

    def to_json_value(self) -> dict[str, Any]:
        """Returns the lineage as JSON values; `from_json_value` reads them. Stamps are in the order of `tables`."""
        tables = sorted({name for entry in self.published for name in entry.stamps})
        return {
            "version": self.version,
            "base": self.base,
            "tables": tables,
            "published": [
                [
                    *(entry.snapshot, entry.version, entry.sequence, entry.dense),
                    *(entry.stamps.get(name) for name in tables),
                ]
                for entry in self.published
            ],
            "ancestors": list(self.ancestors),
            "last_sequence": self.last_sequence,
            "version_bytes": self.version_bytes,
            "delta_bytes": self.delta_bytes,
            "deltas": self.deltas,
            "pending": None if self.pending is None else asdict(self.pending),
            # Without ids that were forgotten, a line is written as before there were any.
            **({"erased_unix_ms": self.erased_unix_ms} if self.erased_unix_ms else {}),
        }

    @classmethod
    def from_json_value(cls, value: Any) -> Lineage:
        """Reads what to_json_value gave. Raises CheckpointError for anything else."""
        try:
            content = dict(value)
            tables, pending = content.pop("tables"), content.pop("pending")
            published = tuple(_entry(tables, *fields) for fields in content.pop("published"))
            ancestors = tuple(content.pop("ancestors"))
            if pending is not None:
                pending = Pending(**{**pending, "applies_to": tuple(pending["applies_to"])})
            return cls(published=published, ancestors=ancestors, pending=pending, **content)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the training checkpoint's line of published snapshots cannot be read ({error!r}); it was made by "
                "another release: publish a version anew"
            ) from None


def _entry(tables: list[str], snapshot: str, version: int, sequence: int, dense: str, *stamps: int | None) -> Published:
    known = {name: stamp for name, stamp in zip(tables, stamps, strict=True) if stamp is not None}
    return Published(snapshot, version, sequence, known, dense)
