"""Sweeps: trainings of a model with other values of its configuration, chosen by Optuna, each in its own process."""

from __future__ import annotations

from emberline.sweep.run import TrialResult
from emberline.sweep.search import SweepReport, sweep

__all__ = ["SweepReport", "TrialResult", "sweep"]
