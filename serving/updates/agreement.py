"""Defines how a model agrees with other replicas on what is served, before it shows something new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from serving.pipeline.snapshot import Snapshot
from serving.updates.state import ModelState


class Outdated(Exception):  # noqa: N818 - no error: an operator or another replica was faster
    """The prepared change no longer fits what is served; the decision is made again."""


@dataclass(frozen=True)
class Agreed:
    """Permission to serve a snapshot."""

    #: Adds to the facts what is ordered for all replicas.
    install: Callable[[ModelState], ModelState] = lambda facts: facts
    #: From when on, by `time.monotonic`; 0.0 for at once.
    at: float = 0.0
    #: Called once the snapshot is served.
    done: Callable[[], None] = lambda: None
    #: True where this server alone decides about its model.
    is_alone: bool = False


#: Returns the facts, and the id of what is served, as they are once a snapshot is shown.
After = Callable[[], tuple[ModelState, str]]


class Agreement(Protocol):
    """Is asked by the updates of a model before and after they take something. Thread-safe."""

    def allows(self, snapshot: str) -> bool:
        """Returns whether a snapshot may be taken now."""

    def way(self) -> frozenset[str]:
        """Returns the snapshots that lead to what is to be served, while something else is."""

    def agree(self, snapshot: Snapshot, own: str, after: After, check: Callable[[], None]) -> Agreed:
        """Waits until a snapshot that is staged and valid may be served.

        own: the snapshot that it was staged upon; "" for none. after: called again and again, because operators decide
        while it waits. check: called while it waits; raises to give up. Raises Outdated, and EmberlineError when
        another replica refuses the snapshot.
        """

    def refuse(self, snapshot: str, error: Exception) -> None:
        """Says that this replica refuses a snapshot."""


class Alone:
    """The agreement of a model that has no other replicas."""

    def allows(self, snapshot: str) -> bool:
        """See Agreement."""
        return True

    def way(self) -> frozenset[str]:
        """See Agreement."""
        return frozenset()

    def agree(self, snapshot: Snapshot, own: str, after: After, check: Callable[[], None]) -> Agreed:
        """See Agreement."""
        return Agreed(is_alone=True)

    def refuse(self, snapshot: str, error: Exception) -> None:
        """See Agreement."""
