"""The metrics of scores. N rows throughout."""

from __future__ import annotations

from trainer.evaluation.binary import BootstrapResult, accuracy, auc, log_loss, paired_bootstrap
from trainer.evaluation.calibration import calibration, calibration_error
from trainer.evaluation.classes import class_accuracy, class_log_loss
from trainer.evaluation.groups import gauc, mrr, ndcg, recall
from trainer.evaluation.measure import measure, recent_text
from trainer.evaluation.regression import mae, rmse

__all__ = [
    "BootstrapResult",
    "accuracy",
    "auc",
    "calibration",
    "calibration_error",
    "class_accuracy",
    "class_log_loss",
    "gauc",
    "log_loss",
    "mae",
    "measure",
    "mrr",
    "ndcg",
    "paired_bootstrap",
    "recall",
    "recent_text",
    "rmse",
]
