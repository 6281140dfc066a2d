"""Finds the runs of a sweep from the files in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage.errors import NotFound

TRIALS = "trials.json"


def is_sweep(folder: Path) -> bool:
    """Returns whether a folder is that of a sweep."""
    return (folder / TRIALS).is_file()


def trial_runs(folder: Path) -> list[Path]:
    """Returns the runs of the trials that have figures. Raises NotFound when none has."""
    found = [_run(folder, trial) for trial in _trials(folder) if trial["state"] != "fail"]
    found = [run for run in found if (run / "config.json").is_file()]
    if not found:
        raise NotFound(f"{folder}: no trial of this sweep has trained yet")
    return found


def failed_trials(folder: Path) -> list[tuple[str, str]]:
    """Returns the name and the last lines of each trial that failed."""
    return [
        (f"{trial['number']:04d}", " ".join(trial["error"].split()))
        for trial in _trials(folder)
        if trial["state"] == "fail"
    ]


def _run(folder: Path, trial: dict[str, Any]) -> Path:
    return folder / "trials" / f"{trial['number']:04d}" / "run"


def _trials(folder: Path) -> list[dict[str, Any]]:
    try:
        trials: list[dict[str, Any]] = json.loads((folder / TRIALS).read_bytes())["trials"]
        return trials
    except (OSError, ValueError, KeyError, TypeError):
        raise NotFound(f"{folder / TRIALS}: is not the list of a sweep's trials") from None
