"""A store and what is served from it: its base, the chain of staged snapshots above it, the versions that read it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from serving.engine.model import LoadedModel
from serving.pipeline.snapshot import Snapshot
from serving.updates.state import Kind, SavedSnapshot, StoreState
from storage.checkpoint import DenseGraph, PublishedVersion
from storage.tiers.tiered import TieredStore

# Of the ids and names that a snapshot covers, these many of the newest are known.
MAX_COVERED = 256


@dataclass(eq=False)
class LoadedVersion:
    """One version on a store: its sessions, and the graph that its snapshots put their weights into."""

    model: LoadedModel
    published: PublishedVersion
    graph: DenseGraph

    @property
    def version(self) -> int:
        """Its number."""
        return self.published.version


@dataclass(frozen=True, eq=False)
class StagedSnapshot:
    """A snapshot on a store, as it is served or can be served at once.

    snapshot: what batches pin. overlay: where its rows are staged; None when it has the rows of the one before it, or
    is the base. kind, visible_ms: as in the state file. rows, removed, bytes: of its delta, or of its difference to the
    version before. covered: snapshots that it was made from, newest last.
    """

    snapshot: Snapshot
    loaded: LoadedVersion
    kind: Kind = "delta"
    overlay: int | None = None
    rows: int = 0
    removed: int = 0
    bytes: int = 0
    covered: tuple[SavedSnapshot, ...] = ()
    visible_ms: float = 0.0

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return self.snapshot.id

    @property
    def name(self) -> str:
        """The name that people write, such as 3.17."""
        return self.snapshot.name

    @property
    def saved(self) -> SavedSnapshot:
        """What the state file says of it."""
        return SavedSnapshot(
            id=self.snapshot.id,
            version=self.snapshot.version,
            sequence=self.snapshot.sequence,
            kind=self.kind,
            origin=str(self.snapshot.origin),
            published_unix_ms=self.snapshot.published_unix_ms,
            visible_ms=self.visible_ms,
        )

    def covers(self) -> set[str]:
        """Ids and names such as 3.17 of the snapshots that it was made from."""
        return {text for name in self.covered for text in (name.id, name.name)}

    def covered_by_next(self) -> tuple[SavedSnapshot, ...]:
        """What a snapshot made from this one covers."""
        return (*self.covered, self.saved)[-MAX_COVERED:]


@dataclass(frozen=True, eq=False)
class StoreView:
    """The snapshots of a store at one moment. entries: the base first, then the chain. served: position of it."""

    entries: tuple[StagedSnapshot, ...]
    served: int = 0

    @property
    def current(self) -> StagedSnapshot:
        """What is served."""
        return self.entries[self.served]

    def find(self, text: str) -> int | None:
        """The position of the snapshot with this id or name; the newest when two have one name."""
        for position in range(len(self.entries) - 1, -1, -1):
            if text in (self.entries[position].id, self.entries[position].name):
                return position
        return None

    def mask(self, position: int) -> int:
        """The overlays that a snapshot at this position shows."""
        overlays = (entry.overlay for entry in self.entries[1 : position + 1] if entry.overlay is not None)
        return sum(1 << overlay for overlay in overlays)


class MountedStore:
    """Changed under the model's lock only. `view` is replaced as a whole.

    content: the version whose files the rows on SSD were loaded from, or relabelled to. merge_lock: held while its
    oldest overlay is merged, and to close it. left_behind: entries that are in no view any more, but in use.
    """

    def __init__(self, folder: Path, store: TieredStore, loaded: LoadedVersion, base: StagedSnapshot) -> None:
        self.folder = folder
        self.store = store
        self.loaded_versions: dict[int, LoadedVersion] = {loaded.version: loaded}
        self.view = StoreView((base,))
        self.content = base.saved
        self.merge_lock = threading.Lock()
        self.merging = False
        self.left_behind: tuple[StagedSnapshot, ...] = ()
        self.closed = False

    def state(self, view: StoreView | None = None) -> StoreState:
        """What the state file says of it."""
        view = view or self.view
        base, *chain = view.entries
        return StoreState(
            folder=self.folder.name,
            content=self.content.version,
            content_snapshot=self.content.id,
            base=base.saved,
            chain=tuple(entry.saved for entry in chain),
            served=view.current.id,
            covered=base.covered,
        )

    def in_use(self) -> frozenset[Snapshot]:
        """Every snapshot that is current in one of its versions, a canary, or pinned by a batch."""
        return frozenset(
            snapshot for loaded in list(self.loaded_versions.values()) for snapshot in loaded.model.history.in_use()
        )
