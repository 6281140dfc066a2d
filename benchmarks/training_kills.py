"""Claim: kill -9 at any moment of a training, with any optimizer, loses nothing that was committed and tears nothing.

Ten trainings, one with each optimizer of the tables, have a fifth of their rows in DRAM, evict, admit by a filter, read
batches ahead, and publish versions and deltas. Each in turn is killed after a random time, while it trains, saves or
publishes, and later resumed, again and again; one that is done begins anew. After every kill the newest commit must be
bit for bit one of the same training, undisturbed and with all rows in DRAM, and so must every version and delta in the
repository. In the end all are resumed once more, and must have made everything that the undisturbed ones made.

    python -m benchmarks.training_kills              # 50 kills: about ten minutes
    python -m benchmarks.training_kills --quick      # 5 kills
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.killed_training import RULES, KilledTraining, clicks
from benchmarks.machine import machine_line
from trainer.embedding import SparseRule
from trainer.loop import TrainingLoop

PHASES = ("training", "saving", "publishing")
# A training is killed within this share of the time that a whole one takes, then so soon after a phase has begun.
LONGEST = 0.4
LATER_S = 0.02
_BEGIN_S, _END_S = 120.0, 60.0
_LOOK_S = 2e-4


def _begin(began: Event, phase: Any, training: KilledTraining, place: Path) -> None:
    """Runs in the child. Signals `began` when the run has loaded its commit, and keeps `phase` as it goes on.

    What a killed publish left is finished first, before any step.
    """
    _enter(phase, "publish_with", 2, began.set)
    _enter(phase, "save", 1)
    _enter(phase, "publish", 2)
    training.train(place, training.dram_bytes)


def _enter(phase: Any, method: str, number: int, first: Callable[[], None] = lambda: None) -> None:
    real = getattr(TrainingLoop, method)

    def entering(loop: TrainingLoop, *args: Any, **options: Any) -> Any:
        first()
        before, phase.value = phase.value, number
        try:
            return real(loop, *args, **options)
        finally:
            phase.value = before

    setattr(TrainingLoop, method, entering)


class Kills:
    """Trainings with some optimizers, each run once undisturbed. work: a folder for all of them."""

    def __init__(self, work: Path, rules: Sequence[SparseRule] = RULES) -> None:
        data = work / "clicks.parquet"
        clicks(data)
        self.trainings = [KilledTraining(rule, work / rule, data) for rule in rules]


def run(kills: Kills, trials: int, *, seed: int = 5) -> Counter[str]:
    """Kills trainings `trials` times, one after the other.

    Counts "killed", the phases and optimizers that kills landed in, kills that left "commits", and "was done". Raises
    AssertionError when anything is wrong.
    """
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.run"])
    rng = np.random.default_rng(seed)
    found = Counter[str]()
    turn = 0
    while found["killed"] < trials:
        training = kills.trainings[turn % len(kills.trainings)]
        place = training.place / "killed"
        began, phase = context.Event(), context.Value("i", 0)
        child = context.Process(target=_begin, args=(began, phase, training, place))
        child.start()
        assert began.wait(_BEGIN_S), f"{training.rule}: the training did not begin"
        child.join(float(rng.uniform(0.0, LONGEST)) * training.seconds)
        wanted = found["killed"] % len(PHASES)
        while child.is_alive() and phase.value != wanted:
            time.sleep(_LOOK_S)
        time.sleep(float(rng.uniform(0.0, LATER_S)))
        if child.is_alive():
            child.kill()
        child.join(_END_S)
        assert child.exitcode in (0, -signal.SIGKILL), f"{training.rule}: the training ended with {child.exitcode}"
        if child.exitcode == 0:
            training.check_end(place)
            shutil.rmtree(place)
            found["was done"] += 1
            continue  # the same one begins anew
        found["killed"] += 1
        found["commits"] += training.check(place) > 0
        found[f"while {PHASES[phase.value]}"] += 1
        found[training.rule] += 1
        turn += 1
    for training in kills.trainings:
        place = training.place / "killed"
        if place.exists():
            training.train(place, training.dram_bytes)
            training.check_end(place)
            found["resumed to the end"] += 1
    return found


def main() -> None:
    """Runs the trials and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 kills, of two optimizers")
    given = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), ("adagrad", "adam") if given.quick else RULES)
        for training in kills.trainings:
            assert training.memory is not None
            print(
                f"{training.rule}: {training.seconds:.1f} s, {len(training.commits)} commits, "
                f"{len(training.published)} versions and deltas; at the end {training.memory.line()}"
            )
        for what, count in run(kills, 5 if given.quick else 50).items():
            print(f"{count:4} {what}")


if __name__ == "__main__":
    main()
