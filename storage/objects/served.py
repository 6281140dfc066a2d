"""Holds what the replicas of a fleet serve: the section `served` of head.json, which any of them may write by CAS.

A replica polls head.json for what is published anyway, so a conditional read tells it both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from storage.checkpoint.signed import SNAPSHOT_PATTERN, Part

#: Held, abandoned and refused snapshots that are remembered, the newest ones.
REMEMBERED = 256
_SNAPSHOT_OR_NONE = rf"^$|{SNAPSHOT_PATTERN}"


class Canary(Part):
    """The canary of all replicas."""

    fraction: float = Field(gt=0, le=1)
    #: "" while the next good arrival is waited for.
    snapshot: str = Field(default="", pattern=_SNAPSHOT_OR_NONE)
    #: A version or snapshot that the operator named; "" for the next arrival.
    to: str = ""


class Served(Part):
    """Holds what all replicas serve, and what an operator ordered. Without a fleet it stays as it is made."""

    #: Grows by one with every change.
    epoch: int = Field(default=0, ge=0)
    #: The snapshot that all serve from `commit_at_unix_ms` on; "" before the first one.
    snapshot: str = Field(default="", pattern=_SNAPSHOT_OR_NONE)
    #: What they served before.
    previous: str = Field(default="", pattern=_SNAPSHOT_OR_NONE)
    commit_at_unix_ms: int = Field(default=0, ge=0)
    #: When it was written, by the same clock as `commit_at_unix_ms`.
    written_unix_ms: int = Field(default=0, ge=0)
    #: Id of the replica that wrote it.
    by: str = ""
    #: Why snapshots were held with this change, such as "it was rolled back".
    why: str = ""
    paused: bool = False
    pinned: bool = False
    canary: Canary | None = None
    #: Snapshots that were rolled back, and those that the trainer has gone past.
    held: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    #: The inputs and outputs that may differ, by version.
    allowed: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    #: Snapshots that a replica refused, with the reasons of all that did.
    refused: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    #: The snapshot to take next, where replicas have staged different ones; "" while they agree.
    next: str = Field(default="", pattern=_SNAPSHOT_OR_NONE)

    @property
    def names(self) -> tuple[str, ...]:
        """The snapshots that must stay in the object store."""
        trial = "" if self.canary is None else self.canary.snapshot
        return tuple(each for each in (self.snapshot, self.previous, trial, self.next) if each)

    def has(self, wanted: Served) -> bool:
        """Returns whether it is `wanted`, but for snapshots that were refused since."""
        since = {"epoch": wanted.epoch, "refused": wanted.refused, "next": wanted.next}
        return self.epoch >= wanted.epoch and self.model_copy(update=since) == wanted

    def changed(self, **update: Any) -> Served:
        """Returns the next epoch with these changes; the lists are bounded."""
        for name in ("held", "abandoned"):
            if name in update:
                update[name] = tuple(update[name])[-REMEMBERED:]
        if "refused" in update:
            update["refused"] = dict(list(update["refused"].items())[-REMEMBERED:])
        return self.model_copy(update={"epoch": self.epoch + 1, **update})

    def refusing(self, snapshot: str, reasons: Sequence[str]) -> Served:
        """Returns it with one more snapshot that no replica may serve, or with more reasons for that."""
        known = self.refused.get(snapshot, ())
        fresh = [reason for reason in reasons if reason not in known]
        if not fresh:
            return self
        following = "" if self.next == snapshot else self.next
        return self.changed(refused={**self.refused, snapshot: (*known, *fresh)}, next=following)
