"""Data sets whose signal is planted: their best reachable AUC, that of the true probabilities, is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import ConfigError
from trainer.datasets.parts import DatasetReport, part_bounds, write_all
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


def write_planted(
    directory: Path,
    name: str,
    rows: int,
    seed: int,
    tables: Callable[[PlantedAuc], Iterable[Any]],
    facts: Mapping[str, Any] | None = None,
) -> DatasetReport:
    """Writes the three parts of a data set, and dataset.json with the best AUC on valid and on test.

    tables: makes the rows, in order, and adds their true probabilities to what it is given. facts: more of them.
    Raises ConfigError for a seed or a number of rows that makes no sense.
    """
    if not 0 <= seed < 2**31:
        raise ConfigError(f"seed is {seed}; expected 0 to 2**31 - 1", field="seed")
    bounds = part_bounds(rows)
    judge = PlantedAuc({part: bounds[part] for part in ("valid", "test")})
    known = {"name": name, **(facts or {}), "seed": seed}
    return write_all(directory, rows, tables(judge), known, last_facts=judge.facts)
