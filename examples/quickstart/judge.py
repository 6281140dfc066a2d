"""Compares the model with its baselines on the same test rows: AUC, and whether the difference is more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from examples.quickstart.baselines import Baseline
from trainer.metrics import auc, paired_bootstrap

Array = np.ndarray[Any, np.dtype[Any]]

SAMPLES = 1000


@dataclass(frozen=True)
class Comparison:
    """The model against one baseline on some rows."""

    rows_of: str
    rows: int
    baseline: str
    auc: float
    auc_baseline: float
    #: AUC of the model minus that of the baseline.
    difference: float
    #: Lower end of the difference's 95% interval over resampled rows.
    low: float
    #: Upper end of that interval.
    high: float

    @property
    def won(self) -> bool:
        """True if the whole interval is above zero."""
        return self.low > 0.0

    def to_json_value(self) -> dict[str, Any]:
        """Returns the comparison as JSON values."""
        return {**asdict(self), "won": self.won}


def compare(labels: Array, scores: Array, baselines: Sequence[Baseline], subsets: dict[str, Array]) -> list[Comparison]:
    """Compares with every baseline on every subset. labels, scores: (N,); subsets: name -> (N,) bool."""
    found = []
    for name, kept in subsets.items():
        truth, model = labels[kept], scores[kept]
        for baseline in baselines:
            other = baseline.scores[kept]
            drawn = paired_bootstrap(truth, model, other, samples=SAMPLES)
            found.append(
                Comparison(
                    name,
                    int(kept.sum()),
                    baseline.name,
                    auc(truth, model),
                    auc(truth, other),
                    drawn.difference,
                    drawn.low,
                    drawn.high,
                )
            )
    return found
