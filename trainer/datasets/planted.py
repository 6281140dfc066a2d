"""The best reachable AUC of a generated data set: that of the true probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.metrics import auc

Array = np.ndarray[Any, np.dtype[Any]]


class PlantedAuc:
    """Collects the true probabilities of some ranges of rows. bounds: part -> (first row, end row)."""

    def __init__(self, bounds: Mapping[str, tuple[int, int]]) -> None:
        self._bounds = dict(bounds)
        self._at = 0
        self._kept: dict[str, list[tuple[Array, Array]]] = {part: [] for part in bounds}

    def add(self, probabilities: Array, labels: Array) -> None:
        """Adds the next rows, in order. probabilities, labels: (n,)."""
        for part, (start, stop) in self._bounds.items():
            first, last = max(start - self._at, 0), min(stop - self._at, len(labels))
            if first < last:
                self._kept[part].append((probabilities[first:last], labels[first:last]))
        self._at += len(labels)

    def facts(self) -> dict[str, Any]:
        """Returns `best_auc`: part -> AUC of the true probabilities."""
        best = {}
        for part, kept in self._kept.items():
            probabilities = np.concatenate([entry[0] for entry in kept])
            labels = np.concatenate([entry[1] for entry in kept])
            best[part] = auc(labels.astype(np.float32), probabilities)
        return {"best_auc": best}
