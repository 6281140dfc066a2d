"""Trials of a fleet: faults, restarts, rollbacks and storms under load whose every answer is checked.

    python -m tests.faults.fleet kill_holder --trials 10
    python -m tests.faults.fleet faults --trials 9          # of each fault
    python -m tests.faults.fleet skew --trials 200          # measures, and checks answers
    python -m tests.faults.fleet storm --trials 3 --seed 5

Prints a line a trial and a summary; ends with 1 when something was violated. The folder of a fleet with a violation
stays, with the servers' logs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.fleet.measures import MEASURES, measure
from tests.faults.fleet.replicas import has_fleet_mode
from tests.faults.fleet.storm import storm
from tests.faults.fleet.trials import FAULTS, SCENARIOS, run


def main() -> int:
    """Runs the scenarios that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="+", choices=["faults", *SCENARIOS, *MEASURES, "storm"])
    parser.add_argument("--trials", type=int, default=3, help="of each scenario; deltas, for what is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outage", type=float, default=30.0, help="seconds for which the store answers 503")
    parser.add_argument("--keep", type=Path, help="work in this folder")
    options = parser.parse_args()
    print(f"{'with' if has_fleet_mode() else 'without'} fleet mode, seed {options.seed}", flush=True)
    work = Path(os.path.realpath(options.keep or tempfile.mkdtemp(prefix="fleet-")))
    names = [name for given in options.scenario for name in (FAULTS if given == "faults" else [given])]
    violated = sum(_run(name, work / name, options) for name in names)
    if violated:
        print(f"{violated} violations; logs in {work}")
    return int(violated > 0)


def _run(name: str, work: Path, options: argparse.Namespace) -> int:
    work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if name in MEASURES:
        measured, wrong = measure(name, work, count=options.trials, seed=options.seed)
        print(f"{name}: {measured}", *(f"    {each}" for each in wrong[:5]), sep="\n", flush=True)
        return len(wrong)
    count = violated = answers = 0
    trials = (
        storm(work, rounds=options.trials, seed=options.seed)
        if name == "storm"
        else run(name, work, count=options.trials, seed=options.seed, outage_s=options.outage)
    )
    for trial in trials:
        count += 1
        violated += bool(trial.violations)
        answers += trial.answers
        print(trial.line(), flush=True)
    took = time.monotonic() - began
    print(f"{name}: {count} trials, {violated} violated, {answers} checked answers, {took:.0f} s", flush=True)
    return violated


if __name__ == "__main__":
    sys.exit(main())
