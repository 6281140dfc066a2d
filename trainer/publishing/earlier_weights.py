"""Finds the published weights that the dense weights of the next delta are written as a difference to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from storage.checkpoint import DenseGraph, PublishedVersion
from storage.checkpoint.as_of import find_as_of
from storage.checkpoint.delta_writer import EarlierWeights
from storage.checkpoint.weights import bits
from storage.errors import CheckpointError, NotFound
from trainer.publishing.lineage import Pending

# Smaller weights are always written whole: a difference would save nothing, and any server can read them.
LEAST_BYTES = 1 << 20


class WeightsOfLine:
    """Remembers the weights that were published last, one copy of them, and reads others from the repository.

    full_every: each so many deltas hold all weights; 1 for all of them.
    """

    def __init__(self, full_every: int) -> None:
        self._full_every = full_every
        self._last: EarlierWeights | None = None

    def before(self, version: PublishedVersion, graph: DenseGraph, pending: Pending) -> EarlierWeights | None:
        """Returns the weights to which those of a pending delta are to be a difference; None for all weights.

        A delta that applies to several snapshots is one to the version, whose weights every server has.
        """
        if self._full_every < 2 or graph.weight_bytes() < LEAST_BYTES:
            return None
        if len(pending.applies_to) > 1 or pending.parent == version.snapshot:
            return EarlierWeights(version.snapshot, 0, {name: bits(value) for name, value in graph.weights().items()})
        last = self._last
        if last is None or last.snapshot != pending.parent:
            last = self._read(version, pending.parent)
        return last if last is not None and last.depth + 2 <= self._full_every else None

    def published(self, snapshot: str, depth: int, weights: Mapping[str, np.ndarray]) -> None:
        """Remembers the weights of a snapshot; they are copied, because training goes on in them."""
        self._last = None
        if self._full_every > 1 and sum(array.nbytes for array in weights.values()) >= LEAST_BYTES:
            self._last = EarlierWeights(snapshot, depth, {name: array.copy() for name, array in weights.items()})

    def _read(self, version: PublishedVersion, snapshot: str) -> EarlierWeights | None:
        try:
            found = find_as_of(version.path.parent, snapshot, verify=False)
            weights = {name: bits(value) for name, value in found.weights().items()}
        except (CheckpointError, NotFound):  # a delta on the way is not on this machine
            return None
        dense = found.deltas[-1].manifest.dense if found.deltas else None
        return EarlierWeights(snapshot, 0 if dense is None else dense.depth, weights)
