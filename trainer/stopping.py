"""Early stopping: which epoch of a training was the best, and whether it is time to end.

Both follow from the evaluations so far, so a run that is resumed decides as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import TrainConfig, watched_metric
from trainer.report import EpochReport

# Of these, more is worse.
_ERRORS = ("log_loss", "rmse", "mae", "calibration_error")


@dataclass(frozen=True)
class Verdict:
    """The best epoch of a run, and whether the run ends."""

    #: The epoch whose model is the best one, 0 before the first evaluation.
    best_epoch: int = 0
    #: Evaluations since then.
    waited: int = 0
    #: Whether the training ends.
    is_over: bool = False


def judge(config: TrainConfig, history: Sequence[EpochReport]) -> Verdict:
    """Judges the evaluations of a run; without early stopping there is no best epoch.

    An evaluation is better when it differs by more than min_delta from the best one. One without a value, such as an
    AUC over one class, does not count.
    """
    stopping = config.training.early_stopping
    if stopping is None:
        return Verdict()
    task, metric = watched_metric(stopping, config.targets.tasks)
    sign = -1.0 if metric in _ERRORS else 1.0
    best: float | None = None
    epoch = waited = 0
    for figures in history:
        value = figures.metrics.get(task, {}).get(metric)
        if value is None:
            continue
        if best is None or sign * (value - best) > stopping.min_delta:
            best, epoch, waited = value, figures.epoch, 0
        else:
            waited += 1
    return Verdict(epoch, waited, waited >= stopping.patience)
