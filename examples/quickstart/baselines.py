"""Baselines of the model: the item's smoothed mean rate, and logistic regression on the model's own features.

The regression gets the same features as the model, from the same feature engine: one column for each id of each
feature, and the dense features. Its regularisation, and whether it uses the lists of earlier items, are chosen on the
validation rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy import sparse  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression

from storage.features import FeatureEngine, FeatureSpec, Jagged, column_from_arrow
from trainer.metrics import auc

Array = np.ndarray[Any, np.dtype[Any]]

SMOOTHING = 5.0
# Inverse strength of the L2 penalty, without and with the lists of earlier items.
STRENGTHS = (0.3, 1.0, 3.0)
STRENGTHS_WITH_LISTS = (0.05, 0.1, 0.2)
ITERATIONS = 200
# Dense features are small numbers; without a scale their weights would be held back more than those of the ids.
DENSE_SCALE = 5.0


@dataclass(frozen=True)
class Baseline:
    """Scores of one baseline."""

    name: str
    #: Scores of the test rows, (N,).
    scores: Array
    #: AUC on the validation rows, by which it was chosen.
    valid_auc: float


def mean_rate(parts: Mapping[str, Path], item: str, label: str) -> Baseline:
    """Scores with the share of likes of an item in the training rows, with SMOOTHING more rows of the overall share."""
    train = pq.read_table(parts["train"], columns=[item, label])
    labels = train[label].to_numpy().astype(np.float64)
    ids, inverse = np.unique(train[item].to_numpy(), return_inverse=True)
    overall = labels.mean()
    rates = (np.bincount(inverse, labels) + SMOOTHING * overall) / (np.bincount(inverse) + SMOOTHING)

    def scores(part: str) -> Array:
        wanted = pq.read_table(parts[part], columns=[item])[item].to_numpy()
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        found: Array = np.where(ids[at] == wanted, rates[at], overall)
        return found

    valid = auc(pq.read_table(parts["valid"], columns=[label])[label].to_numpy(), scores("valid"))
    return Baseline(f"mean rate of the {item}", scores("test"), valid)


def logistic_regression(parts: Mapping[str, Path], spec: FeatureSpec, label: str, lists: frozenset[str]) -> Baseline:
    """Returns the best of STRENGTHS, without and with the features in `lists`, by AUC on the validation rows."""
    batches = {part: _engine_output(spec, parts[part], label) for part in ("train", "valid", "test")}
    matrices: dict[str, dict[str, Any]] = {part: {} for part in batches}
    for feature in spec.ids_features:
        known = np.unique(batches["train"][0][feature.name].values)
        for part, (ids, _, _) in batches.items():
            matrices[part][feature.name] = _columns(ids[feature.name], known, shared=feature.name in lists)
    best: Baseline | None = None
    plain = [feature.name for feature in spec.ids_features if feature.name not in lists]
    for names, strengths in ((plain, STRENGTHS), ([*plain, *sorted(lists)], STRENGTHS_WITH_LISTS)):
        joined = {
            part: sparse.hstack([*(matrices[part][name] for name in names), sparse.csr_matrix(dense)]).tocsr()
            for part, (_, dense, _) in batches.items()
        }
        for strength in strengths:
            model = LogisticRegression(C=strength, solver="liblinear", max_iter=ITERATIONS).fit(
                joined["train"], batches["train"][2]
            )
            valid = auc(batches["valid"][2], model.decision_function(joined["valid"]))
            if best is None or valid > best.valid_auc:
                with_lists = "with" if len(names) > len(plain) else "without"
                name = f"logistic regression (C {strength:g}, {with_lists} earlier items)"
                best = Baseline(name, model.decision_function(joined["test"]), valid)
    assert best is not None
    return best


def _engine_output(spec: FeatureSpec, path: Path, label: str) -> tuple[dict[str, Jagged], Array, Array]:
    table = pq.read_table(path)
    columns = {entry.name: column_from_arrow(table[entry.source], entry) for entry in spec.inputs}
    batch = FeatureEngine(spec).run(columns, table.num_rows)
    dense = np.concatenate([np.zeros((table.num_rows, 0)), *batch.dense.values()], axis=1) * DENSE_SCALE
    return dict(batch.ids), dense, table[label].to_numpy().astype(np.int64)


def _columns(bags: Jagged, known: Array, *, shared: bool) -> Any:
    """Encodes one-hot or multi-hot.

    shared: a row's ones are divided by the root of their number, which suits long lists.
    """
    at = np.minimum(np.searchsorted(known, bags.values), max(len(known) - 1, 0))
    lengths = np.diff(bags.offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    kept = known[at] == bags.values if len(known) else np.zeros(0, np.bool_)
    weights = np.ones(len(rows)) / (np.sqrt(lengths[rows]) if shared else 1.0)
    shape = (len(lengths), len(known))
    return sparse.csr_matrix((weights[kept], (rows[kept], at[kept])), shape=shape)
