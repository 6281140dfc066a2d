"""The snapshots of a training: those that it publishes on its way, and what an earlier run published.

Of several ranks the first one publishes, with the rows of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from storage.features import Column
from trainer.checkpoint import Position
from trainer.embedding import EmbeddingTable
from trainer.embedding.whole_table import at_first
from trainer.event_times import TrainedTimes
from trainer.progress import Display
from trainer.publishing import DeltaPolicy, Lineage, Publisher, WantedKind
from trainer.publishing.drift import LossDrift
from trainer.ranks import Ranks

_Result = TypeVar("_Result")


class Snapshots:
    """Publishes with a publisher when its policy says so; without one, only carries on what was published before.

    ranks: those that train together, of which each has a part of the rows of `tables`.
    """

    def __init__(self, display: Display, ranks: Ranks, tables: Iterable[EmbeddingTable]) -> None:
        self.written: list[Path] = []
        #: What was published so far, as JSON values, where this rank has no publisher.
        self.carried: dict[str, Any] | None = None
        #: The state of `publish.delta_on_drift` as JSON values, until `publish_with`.
        self.carried_drift: dict[str, Any] = {}
        self._drift: LossDrift | None = None
        #: True from `publish_with` on, at all ranks.
        self.are_published = False
        self._display = display
        self._ranks = ranks
        self._tables = tuple(tables)
        self._publisher: Publisher | None = None
        self._policy = DeltaPolicy()
        self._published_at = time.monotonic()

    def publish_with(self, publisher: Publisher | None, policy: DeltaPolicy) -> None:
        """Publishes from this call on. publisher: None at the other ranks than the first."""
        self._publisher = publisher
        self._policy = policy
        if policy.on_drift is not None:
            self._drift = LossDrift(*policy.on_drift)
            self._drift.restore(self.carried_drift)
        self.are_published = True
        self._tell_lineage()

    def offer(self, columns: Mapping[str, Column]) -> None:
        """Gives raw columns of rows that are trained on, of which golden requests are made."""
        if self._publisher is not None:
            self._publisher.offer(columns)

    def forget_offered(self) -> None:
        """Makes golden requests of rows that are offered from now on."""
        if self._publisher is not None:
            self._publisher.forget_offered()

    def trained(self, loss: float, rows: int) -> None:
        """Takes the mean loss of a batch, at all ranks, before its step."""
        if self._drift is not None:
            self._drift.add(loss, rows)

    @property
    def drift(self) -> tuple[float, float] | None:
        """The lowest mean loss since the last publish and the one now, if that is drift by the policy."""
        return None if self._drift is None else self._drift.risen

    def drift_to_json_value(self) -> dict[str, Any]:
        """Returns the state of `publish.delta_on_drift`, for a commit."""
        return self.carried_drift if self._drift is None else self._drift.to_json_value()

    def is_due(self, position: Position) -> bool:
        """Returns whether the policy asks for a delta of this position."""
        if self.drift is not None:
            return True
        if not self.are_published or not self._policy.publishes_deltas:
            return False
        seconds = time.monotonic() - self._published_at
        if self._ranks.are_several and self._policy.delta_every_seconds:
            of_first = torch.tensor(seconds if self._ranks.is_first else 0.0, dtype=torch.float64)
            self._ranks.sum(of_first)  # each rank has a clock of its own
            seconds = float(of_first)
        return self._policy.delta_due(
            steps=position.step - position.published_step,
            rows=position.rows - position.published_rows,
            seconds=seconds,
        )

    def prepare(self, kind: WantedKind, from_snapshot: str | None, times: TrainedTimes) -> tuple[str, ...]:
        """Prepares the state as it is now, and returns the ids of its snapshots; a commit has them before `write`.

        times: those of the rows that it was trained on, all of them at the first rank; they begin anew.
        """
        names = self._at_first(lambda: self._own.prepare(kind, from_snapshot=from_snapshot, times=times).snapshots)
        if self._drift is not None:
            self._drift.published()
        self._tell_lineage()
        return names

    def write(self) -> Path:
        """Writes what is prepared, and returns the folder of the version or delta."""

        def written() -> tuple[Path, tuple[Path, ...], list[str]]:
            folder = self._own.write()
            return folder, self._own.written, [self._own.shown(path) for path in self._own.written]

        folder, folders, shown = self._at_first(written)
        self._tell_lineage()
        self._published_at = time.monotonic()
        self.written += folders
        for each in shown:
            self._display.say(f"published {each}")
        return folder

    def write_pending(self) -> None:
        """Writes what a run that stopped had prepared, if there is anything."""
        if self.are_published and self._is_pending(self.to_json_value()):
            self.write()

    def published_path(self) -> Path | None:
        """Returns the folder of the newest snapshot; None where it has to be published anew."""
        return self._at_first(lambda: self._own.published_path())

    def to_json_value(self) -> dict[str, Any] | None:
        """Returns what was published, for a commit; None if nothing was, and there is no publisher."""
        return self.carried if self._publisher is None else self._publisher.lineage.to_json_value()

    def is_unsettled(self, committed: dict[str, Any] | None) -> bool:
        """Returns whether the newest commit still calls a snapshot pending. committed: what it holds of snapshots."""
        return self.are_published and self._is_pending(committed)

    @staticmethod
    def _is_pending(published: dict[str, Any] | None) -> bool:
        return published is not None and Lineage.from_json_value(published).pending is not None

    @property
    def _own(self) -> Publisher:
        assert self._publisher is not None
        return self._publisher

    def _at_first(self, work: Callable[[], _Result]) -> _Result:
        scratch = None if self._publisher is None else self._publisher.folder
        with torch.random.fork_rng(devices=[]):
            return at_first(self._ranks, self._tables, work, scratch)

    def _tell_lineage(self) -> None:
        self.carried = self._ranks.from_first(self.to_json_value())
