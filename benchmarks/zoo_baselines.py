"""The baselines of `benchmarks.zoo`: a logistic regression and gradient boosted trees over a model's own features.

Both get what the feature engine makes of the rows. The regression has a column for each id of each feature, lists
divided by the root of their length; the trees get the ids that are frequent in training as categories, with lists left
out. Both are chosen on the validation rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import PeerMissingError
from storage.features import Jagged
from storage.features.engine import FeatureEngine
from trainer.config import TrainConfig
from trainer.data import BatchMaker
from trainer.metrics import auc
from trainer.row_sources import evaluation_rows

Array = np.ndarray[Any, np.dtype[Any]]

#: Inverse strengths of the L2 penalty.
STRENGTHS = (0.05, 0.1, 0.3, 1.0)
ITERATIONS = 100
#: Leaves of the trees and rows of a leaf, and the most trees; the number is chosen on the validation rows.
TREES = ({"num_leaves": 31, "min_data_in_leaf": 20}, {"num_leaves": 15, "min_data_in_leaf": 100})
#: What splits by categories cost, so that those of few rows are not learnt by heart.
OF_CATEGORIES = {"cat_smooth": 50.0, "cat_l2": 50.0, "max_cat_threshold": 64}
TREES_AT_MOST = 1000
#: The most frequent ids of a feature are categories; the others are missing values.
CATEGORIES = 2000


@dataclass(frozen=True)
class Part:
    """The features of some rows: ids by feature, dense values (N, W), labels of the first task (N,)."""

    ids: Mapping[str, Jagged]
    dense: Array
    labels: Array


@dataclass(frozen=True)
class Baseline:
    """Scores of the test rows, (N,), and how the baseline was set."""

    scores: Array
    setting: str
    valid_auc: float


def parts_of(config: TrainConfig, files: Mapping[str, Path]) -> dict[str, Part]:
    """Returns the features of each part of a data set."""
    found: dict[str, Part] = {}
    for name, path in files.items():
        rows = evaluation_rows(config, path).read()
        maker = BatchMaker(config.spec, config.targets)
        batch = FeatureEngine(config.spec).run(maker.columns(rows), rows.num_rows)
        dense = np.concatenate([np.zeros((rows.num_rows, 0), np.float32), *batch.dense.values()], axis=1)
        found[name] = Part(dict(batch.ids), dense, maker.batch(rows).labels.numpy()[:, 0])
    return found


def logistic_regression(parts: Mapping[str, Part]) -> Baseline:
    """Returns the best of STRENGTHS by AUC on the validation rows."""
    from scipy import sparse  # type: ignore[import-untyped]
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    matrices: dict[str, Any] = {}
    known = {name: np.unique(bags.values) for name, bags in parts["train"].ids.items()}
    for name, part in parts.items():
        columns = [_one_hot(part.ids[feature], known[feature]) for feature in known]
        matrices[name] = sparse.hstack([*columns, sparse.csr_matrix(part.dense)]).tocsr()
    best: Baseline | None = None
    for strength in STRENGTHS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=strength, max_iter=ITERATIONS).fit(matrices["train"], parts["train"].labels)
        valid = auc(parts["valid"].labels, model.decision_function(matrices["valid"]))
        if best is None or valid > best.valid_auc:
            best = Baseline(model.decision_function(matrices["test"]), f"C {strength:g}", valid)
    assert best is not None
    return best


def boosted_trees(parts: Mapping[str, Part]) -> Baseline:
    """Returns the best of TREES by AUC on the validation rows. Raises PeerMissingError without LightGBM."""
    try:
        import lightgbm
    except ImportError as error:
        raise PeerMissingError(f"LightGBM cannot be imported ({error}); pip install 'emberline[bench]'") from None
    ranks = {name: _ranks(bags) for name, bags in parts["train"].ids.items() if (np.diff(bags.offsets) <= 1).all()}
    matrices = {
        name: np.concatenate([part.dense, *(_ranked(part.ids[each], *ranks[each]) for each in ranks)], axis=1)
        for name, part in parts.items()
    }
    width = parts["train"].dense.shape[1]
    categories = list(range(width, width + len(ranks)))
    best: Baseline | None = None
    for setting in TREES:
        model = lightgbm.train(
            {"objective": "binary", "metric": "auc", "verbose": -1, "seed": 1, "learning_rate": 0.05}
            | {**OF_CATEGORIES, **setting},
            lightgbm.Dataset(matrices["train"], parts["train"].labels, categorical_feature=categories),
            TREES_AT_MOST,
            valid_sets=[lightgbm.Dataset(matrices["valid"], parts["valid"].labels, categorical_feature=categories)],
            callbacks=[lightgbm.early_stopping(50, verbose=False)],
        )
        valid = auc(parts["valid"].labels, model.predict(matrices["valid"]))
        if best is None or valid > best.valid_auc:
            said = f"{model.best_iteration} trees of {setting['num_leaves']} leaves"
            best = Baseline(np.asarray(model.predict(matrices["test"])), said, valid)
    assert best is not None
    return best


def _one_hot(bags: Jagged, known: Array) -> Any:
    from scipy import sparse

    lengths = np.diff(bags.offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    at = np.minimum(np.searchsorted(known, bags.values), max(len(known) - 1, 0))
    kept = known[at] == bags.values if len(known) else np.zeros(0, np.bool_)
    weights = 1.0 / np.sqrt(lengths[rows])
    shape = (len(lengths), len(known))
    return sparse.csr_matrix((weights[kept], (rows[kept], at[kept])), shape=shape)


def _ranks(bags: Jagged) -> tuple[Array, Array]:
    """Returns the ids of training, ascending, and the rank of each by its frequency."""
    known, counts = np.unique(bags.values, return_counts=True)
    ranks = np.empty(len(known), np.float32)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(known))
    return known, ranks


def _ranked(bags: Jagged, known: Array, ranks: Array) -> Array:
    """Returns the rank of each row's id (N, 1) if it is below CATEGORIES; nan without an id and for other ids."""
    found = np.full((len(bags.offsets) - 1, 1), np.nan, np.float32)
    at = np.minimum(np.searchsorted(known, bags.values), len(known) - 1)
    is_frequent = (known[at] == bags.values) & (ranks[at] < CATEGORIES)
    found[np.diff(bags.offsets) > 0, 0] = np.where(is_frequent, ranks[at], np.nan)
    return found
