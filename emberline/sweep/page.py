"""The page of a sweep: all trials beside each other."""

from __future__ import annotations

from emberline.comparison.page import to_html, write_page
from emberline.comparison.runs import read_runs
from emberline.comparison.sweeps import failed_trials, trial_runs
from emberline.sweep.plan import SweepPlan
from storage.errors import NotFound


def write_sweep_page(plan: SweepPlan) -> None:
    """Writes OUTPUT/page.html, unless no trial has begun to train."""
    try:
        runs = read_runs(trial_runs(plan.output))
    except NotFound:
        return
    failed = failed_trials(plan.output)
    text = to_html(str(plan.output), runs, plan.metric, minimize=plan.minimize, failed=failed)
    write_page(plan.output / "page.html", text)
