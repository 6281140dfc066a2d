"""Defines a mounted store: its base, the chain of staged snapshots above it, and the versions that read it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from serving.engine.model import LoadedModel
from serving.pipeline.snapshot import Snapshot
from serving.updates.disk_waits import DiskWaits
from serving.updates.state import Kind, SavedSnapshot, StoreState
from storage.checkpoint import DenseGraph, PublishedVersion
from storage.tiers.tiered import TieredStore

# Number of the newest snapshots that are remembered of those that a snapshot covers.
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
    """A snapshot on a store, as it is served or can be served at once."""

    #: The snapshot that batches pin.
    snapshot: Snapshot
    loaded: LoadedVersion
    #: Kind and `visible_ms` as in the state file.
    kind: Kind = "delta"
    #: Overlay in which its rows are staged; None when it has the rows of the one before it, or is the base.
    overlay: int | None = None
    #: Rows, removed rows and bytes of its delta, or of its difference to the version before.
    rows: int = 0
    removed: int = 0
    bytes: int = 0
    #: Snapshots that it was made from, newest last.
    covered: tuple[SavedSnapshot, ...] = ()
    visible_ms: float = 0.0
    #: Snapshots whose kept deltas make its dense weights after a restart, oldest first; its own is not among them.
    dense_needs: tuple[str, ...] = ()

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
        """The entry of this snapshot in the state file."""
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
        """Returns the ids and names such as 3.17 of the snapshots that it was made from."""
        return {text for name in self.covered for text in (name.id, name.name)}

    def covered_by_next(self) -> tuple[SavedSnapshot, ...]:
        """Returns what a snapshot made from this one covers."""
        return (*self.covered, self.saved)[-MAX_COVERED:]


@dataclass(frozen=True, eq=False)
class StoreView:
    """The snapshots of a store at one moment."""

    #: The base first, then the chain.
    entries: tuple[StagedSnapshot, ...]
    #: Position of the served snapshot.
    served: int = 0
    #: Snapshots that are staged for a shadow alone, each on the one before; the last one is the shadow. The chain goes
    #: on without them.
    beside: tuple[StagedSnapshot, ...] = ()
    #: Id of the snapshot of the chain that the first of them is staged on.
    beside_on: str = ""

    @property
    def current(self) -> StagedSnapshot:
        """The served snapshot."""
        return self.entries[self.served]

    def at(self, position: int) -> StoreView:
        """Returns the same snapshots, where another one is served."""
        return replace(self, served=position)

    def without_beside(self) -> StoreView:
        """Returns the chain alone."""
        return replace(self, beside=(), beside_on="")

    def staged(self, snapshot: str) -> StagedSnapshot | None:
        """Returns the snapshot with this id, of the chain or beside it."""
        return next((entry for entry in (*self.entries, *self.beside[-1:]) if entry.id == snapshot), None)

    def find(self, text: str) -> int | None:
        """Returns the position of the snapshot with this id or name; the newest when two have one name."""
        for position in range(len(self.entries) - 1, -1, -1):
            if text in (self.entries[position].id, self.entries[position].name):
                return position
        return None

    def mask(self, position: int) -> int:
        """Returns the overlays that a snapshot at this position shows, as a bit mask."""
        overlays = (entry.overlay for entry in self.entries[1 : position + 1] if entry.overlay is not None)
        return sum(1 << overlay for overlay in overlays)


class MountedStore:
    """A store that is open, with its snapshots and the versions on it.

    It is changed under the model's lock only, and `view` is replaced as a whole.
    """

    def __init__(self, folder: Path, store: TieredStore, loaded: LoadedVersion, base: StagedSnapshot) -> None:
        self.folder = folder
        self.store = store
        self.loaded_versions: dict[int, LoadedVersion] = {loaded.version: loaded}
        self.view = StoreView((base,))
        #: The version whose files the rows on SSD were loaded from, or relabelled to.
        self.content = base.saved
        #: Held while the oldest overlay is merged, and while the store is closed.
        self.merge_lock = threading.Lock()
        #: Held while somebody who asks about rows reads the store beside its sessions, and while the store is closed.
        self.asked_lock = threading.Lock()
        #: How long lookups wait for its disk.
        self.disk_waits = DiskWaits()
        self.merging = False
        #: Whether it was opened for a shadow: requests that name its version do not find it.
        self.is_hidden = False
        #: Entries that are in no view any more, but in use.
        self.left_behind: tuple[StagedSnapshot, ...] = ()
        self.closed = False

    def state(self, view: StoreView | None = None) -> StoreState:
        """Returns the entry of this store in the state file."""
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

    def can_serve(self, position: int) -> bool:
        """Returns whether requests can be answered from the snapshot at a position of the view.

        The base cannot serve once a merge into it has begun, even when the merge then failed.
        """
        if position == 0 and (self.merging or self.store.at != self.view.entries[0].id):
            return False
        entry = self.view.entries[position]
        return self.loaded_versions.get(entry.loaded.version) is entry.loaded

    def in_use(self) -> frozenset[Snapshot]:
        """Returns every snapshot that is current in one of its versions, a canary, or pinned by a batch."""
        return frozenset(
            snapshot for loaded in list(self.loaded_versions.values()) for snapshot in loaded.model.history.in_use()
        )
