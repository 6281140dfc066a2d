"""The snapshots of a training: those that it publishes on its way, and what an earlier run published."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from storage.features import Column
from trainer.checkpoint import Position
from trainer.event_times import TrainedTimes
from trainer.progress import Display
from trainer.publishing import DeltaPolicy, Lineage, Publisher, WantedKind


class Snapshots:
    """Publishes with a publisher when its policy says so; without one, only carries on what was published before."""

    def __init__(self, display: Display) -> None:
        self.written: list[Path] = []
        #: What an earlier run published, as JSON values, for as long as there is no publisher.
        self.carried: dict[str, Any] | None = None
        self._display = display
        self._publisher: Publisher | None = None
        self._policy = DeltaPolicy()
        self._published_at = time.monotonic()

    def publish_with(self, publisher: Publisher, policy: DeltaPolicy) -> None:
        """Publishes from this call on."""
        self._publisher = publisher
        self._policy = policy

    @property
    def are_published(self) -> bool:
        """True if there is a publisher."""
        return self._publisher is not None

    def offer(self, columns: Mapping[str, Column]) -> None:
        """Gives raw columns of rows that are trained on, of which golden requests are made."""
        if self._publisher is not None:
            self._publisher.offer(columns)

    def forget_offered(self) -> None:
        """Makes golden requests of rows that are offered from now on."""
        if self._publisher is not None:
            self._publisher.forget_offered()

    def is_due(self, position: Position) -> bool:
        """Returns whether the policy asks for a delta of this position."""
        if self._publisher is None or not self._policy.publishes_deltas:
            return False
        return self._policy.delta_due(
            steps=position.step - position.published_step,
            rows=position.rows - position.published_rows,
            seconds=time.monotonic() - self._published_at,
        )

    def prepare(self, kind: WantedKind, from_snapshot: str | None, times: TrainedTimes) -> tuple[str, ...]:
        """Prepares the state as it is now, and returns the ids of its snapshots; a commit has them before `write`.

        times: those of the rows that it was trained on; they begin anew.
        """
        assert self._publisher is not None
        with torch.random.fork_rng(devices=[]):
            return self._publisher.prepare(kind, from_snapshot=from_snapshot, times=times).snapshots

    def write(self) -> Path:
        """Writes what is prepared, and returns the folder of the version or delta."""
        assert self._publisher is not None
        with torch.random.fork_rng(devices=[]):
            folder = self._publisher.write()
        self._published_at = time.monotonic()
        self.written += self._publisher.written
        for path in self._publisher.written:
            self._display.say(f"published {self._publisher.shown(path)}")
        return folder

    def write_pending(self) -> None:
        """Writes what a run that stopped had prepared, if there is anything."""
        if self._publisher is not None and self._publisher.lineage.pending is not None:
            self.write()

    def to_json_value(self) -> dict[str, Any] | None:
        """Returns what was published, for a commit; None if nothing was, and there is no publisher."""
        return self.carried if self._publisher is None else self._publisher.lineage.to_json_value()

    def is_unsettled(self, committed: dict[str, Any] | None) -> bool:
        """Returns whether the newest commit still calls a snapshot pending. committed: what it holds of snapshots."""
        if self._publisher is None or committed is None:
            return False
        return Lineage.from_json_value(committed).pending is not None
