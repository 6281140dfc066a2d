"""Decides which columns a model should not see: those that say nothing, and those that say too much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from emberline.draft.sample import ColumnSample
from emberline.draft.treatment import unit_of_time
from trainer.metrics import auc

Array = np.ndarray[Any, np.dtype[Any]]

# A column by whose values alone the label is ranked so well holds what is known only after the label.
_LEAK = 0.995
_UNIQUE_FROM = 100
# Values of a category are judged when each stands for so many rows.
_ROWS_OF_A_VALUE = 10
_TEXT_LENGTH = 80


def why_useless(column: ColumnSample) -> str | None:
    """Returns why a column says nothing about the label; None if it may."""
    if column.kind == "other":
        return f"{column.type}, which no input takes"
    if column.present == 0:
        return "null in every row"
    if column.distinct <= 1 and column.nulls == 0 and column.kind != "list":
        return f"the same value in every row ({_shown(column.values[0])})"
    if column.distinct == 0:
        return "empty in every row"
    if column.kind == "float" and not np.isfinite(column.numbers()).any():
        return "infinite in every row"
    is_time = column.kind == "integer" and unit_of_time(column) is not None
    if column.kind in ("integer", "text") and column.distinct == column.present >= _UNIQUE_FROM and not is_time:
        return "another value in every row"
    if column.kind == "text" and column.distinct > column.present // 2 and _mean_length(column) > _TEXT_LENGTH:
        return "long texts, nearly all different; add features of them by hand"
    return None


def why_leaking(column: ColumnSample, whole: Any, labels: Array) -> str | None:
    """Returns why a column gives the label away; None if it does not. whole: all its values, with nulls.

    labels: (N,), 0 and 1; other labels are not judged.
    """
    if column.kind in ("list", "other", "time") or not set(np.unique(labels).tolist()) <= {0.0, 1.0}:
        return None
    judged = 0.5
    if column.kind in ("integer", "float", "boolean"):
        there = np.asarray(pc.is_valid(whole).to_numpy(zero_copy_only=False)).astype(bool)
        if column.kind == "float":
            there &= ~np.isnan(np.asarray(whole.to_numpy(zero_copy_only=False)).astype(np.float64))
        judged = _separation(labels[there], column.numbers())
    if column.distinct * _ROWS_OF_A_VALUE <= column.present:
        codes = whole.dictionary_encode(null_encoding="encode")
        places = np.asarray(codes.indices.to_numpy(zero_copy_only=False)).astype(np.int64)
        means = np.bincount(places, labels) / np.maximum(np.bincount(places), 1)
        judged = max(judged, _separation(labels, means[places]))
    return (
        f"ranks the label almost alone (AUC {judged:.3f}), so it may be known only after it" if judged > _LEAK else None
    )


def _separation(labels: Array, scores: Array) -> float:
    if len(labels) == 0 or labels.min() == labels.max():
        return 0.5
    found = auc(labels.astype(np.float32), np.nan_to_num(scores))
    return max(found, 1.0 - found)


def _mean_length(column: ColumnSample) -> float:
    return float(pc.mean(pc.utf8_length(column.values)).as_py() or 0.0)


def _shown(value: Any) -> str:
    shown = str(value.as_py())
    return shown if len(shown) <= 30 else shown[:30] + "..."
