"""Warm start: a model with other features, tables or dims takes over what it can of a run or a published version.

Tables are found again by name, and dense weights by the features that their values belong to. What is new is
initialised, and what is gone is named in a report.
"""

from __future__ import annotations

from trainer.start_report import StartReport, TableStart, WeightStart
from trainer.warm_start.start import StartFrom, plan_start, start_config, start_module

__all__ = ["StartFrom", "StartReport", "TableStart", "WeightStart", "plan_start", "start_config", "start_module"]
