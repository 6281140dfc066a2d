"""Holds the objects by which the replicas of a model agree on what they serve: one of each replica, and a lease.

A replica writes its object when it has staged something, so nothing is written while nothing is published. Whoever
holds the lease reads them all. The lease only saves requests: it is the compare-and-swap of head.json that keeps two
holders from committing different snapshots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import Field, ValidationError

from storage.checkpoint.signed import Part
from storage.checkpoint.strict_json import canonical_json
from storage.errors import Conflict, NotFound
from storage.objects.head import Head
from storage.objects.published import PublishedModel
from storage.objects.replica_id import REPLICA_PATTERN
from storage.objects.served import Served
from storage.objects.urls import join

#: A holder that has died is followed by another one after this time, by the clocks of those that wait.
LEASE_MS = 10_000
_READS = 8
REPLICAS, LEASE = "replicas", "lease.json"


class Replica(Part):
    """Holds what a replica says of itself."""

    id: str = Field(pattern=REPLICA_PATTERN)
    #: Where it answers health checks, such as http://10.0.0.7:8000; "" when nobody can ask.
    url: str = ""
    #: Whoever sends it this word makes it look at the object store; only readers of the store know it.
    wake: str = ""
    #: The snapshot that it served when it wrote this.
    served: str = ""
    #: The snapshot that is staged and waits for the others; "" for none.
    staged: str = ""
    #: Why it cannot take what the others take, such as a full disk; "" when it can.
    trouble: str = ""
    unix_ms: int = Field(default=0, ge=0)


class Lease(Part):
    """Says who commits for the replicas, and until when."""

    holder: str = ""
    until_unix_ms: int = 0


class FleetObjects:
    """The objects of one model by which its replicas agree. Thread-safe."""

    def __init__(self, model: PublishedModel) -> None:
        self.model = model
        self._objects = model.objects
        # What was read, by name, with the tag of its content.
        self._read: dict[str, tuple[str, Replica | None]] = {}
        self._known: tuple[Sequence[Replica], int] = ((), 0)
        self._reading = threading.Lock()
        self._pool = ThreadPoolExecutor(_READS, thread_name_prefix="emberline-replicas")

    def report(self, replica: Replica) -> None:
        """Writes what a replica says of itself, whatever it said before."""
        self._objects.put(self._key(replica.id), _bytes(replica))

    def leave(self, replica: str, wake: str = "") -> None:
        """Forgets a replica that ends, or has ended, and frees its lease.

        wake: the word of the object that is meant. One with another word stays: whoever has that name now wrote it.
        """
        there = self.replica(replica) if wake else None
        if there is not None and there.wake != wake:
            return
        self._objects.delete([self._key(replica)])
        if self.lease().holder == replica:
            self._objects.edit(
                join(self.model.name, LEASE), lambda data: _bytes(Lease()) if _lease(data).holder == replica else None
            )

    def replicas(self) -> list[Replica]:
        """Returns what all replicas say of themselves, by id; objects that cannot be parsed are left out."""
        names = self._objects.names(join(self.model.name, REPLICAS))
        with self._reading:
            fresh = {name for name, tag in names.items() if tag != self._read.get(name, ("", None))[0]}
            read = list(self._pool.map(self._replica, fresh)) if fresh else []
            self._read = {name: each for name, each in self._read.items() if name in names and name not in fresh}
            self._read |= {name: (names[name], each) for name, each in zip(fresh, read, strict=True)}
            found = sorted((each for _, each in self._read.values() if each is not None), key=lambda each: each.id)
            self._known = (found, time.time_ns() // 1_000_000)
            return found

    @property
    def known(self) -> tuple[Sequence[Replica], int]:
        """Returns what `replicas` returned last, and when, in milliseconds since 1970; nothing and 0 before."""
        return self._known

    def replica(self, id: str) -> Replica | None:
        """Returns what a replica says of itself; None where it says nothing."""
        return self._replica(f"{id}.json")

    def _replica(self, name: str) -> Replica | None:
        try:
            entry = self._objects.read(join(self.model.name, REPLICAS, name))
            assert entry is not None
            return Replica.model_validate_json(entry.data)
        except (NotFound, ValidationError):
            return None

    def take_lease(self, replica: str, now_unix_ms: int, dead: str = "") -> bool:
        """Returns whether the replica holds the lease now. It is renewed when less than half of it is left.

        dead: a replica whose lease counts no more.
        """
        taken = False

        def change(data: bytes | None) -> bytes | None:
            nonlocal taken
            lease = _lease(data)
            # One that ends later than any lease may was written by a clock that is ahead, or was damaged.
            is_free = not now_unix_ms <= lease.until_unix_ms <= now_unix_ms + 2 * LEASE_MS
            taken = lease.holder in (replica, dead) or is_free
            if not taken or (lease.holder == replica and lease.until_unix_ms > now_unix_ms + LEASE_MS // 2):
                return None
            return _bytes(Lease(holder=replica, until_unix_ms=now_unix_ms + LEASE_MS))

        self._objects.edit(join(self.model.name, LEASE), change)
        return taken

    def lease(self) -> Lease:
        """Returns who holds the lease; an empty one when nobody ever did."""
        try:
            found = self._objects.read(join(self.model.name, LEASE))
        except NotFound:
            return Lease()
        assert found is not None
        return _lease(found.data)

    def write(self, seen: Served, change: Callable[[Served], Served]) -> Head:
        """Changes what the replicas serve. Raises Conflict when that is not `seen` any more, ObjectStoreError.

        A change whose answer got lost is found done.
        """
        wanted = change(seen)

        def edited(head: Head) -> Head:
            if head.served.has(wanted):
                return head
            if head.served != seen:
                raise Conflict(f"{self.model.url}: the fleet has moved on meanwhile; look again")
            return head.model_copy(update={"served": wanted})

        return self.model.update(edited)

    def refuse(self, snapshot: str, reason: str) -> Head:
        """Records that a replica refuses a snapshot, so that none of them serves it, while it is published."""

        def edited(head: Head) -> Head:
            served = head.served.refusing(snapshot, [reason]) if head.find(snapshot) else head.served
            return head if served is head.served else head.model_copy(update={"served": served})

        return self.model.update(edited)

    def _key(self, replica: str) -> str:
        return join(self.model.name, REPLICAS, f"{replica}.json")


def _bytes(part: Part) -> bytes:
    return canonical_json(part.model_dump(mode="json"))


def _lease(data: bytes | None) -> Lease:
    try:
        return Lease() if data is None else Lease.model_validate_json(data)
    except ValidationError:
        return Lease()
