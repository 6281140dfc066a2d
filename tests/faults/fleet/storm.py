"""Everything at once on a fleet: deltas, versions, rollbacks, pins, loads and restarts, each answer checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.faults.fleet.clients import Clients
from tests.faults.fleet.replicas import Fleet, fleet, has_fleet_mode
from tests.faults.fleet.trials import SETTLE_S, Trial

_DELTAS = 4


def storm(work: Path, *, rounds: int, seed: int) -> Iterator[Trial]:
    """Runs rounds on one fleet; the first violation ends it."""
    rng = np.random.default_rng(seed)
    with fleet(work, seed=seed) as running, Clients(running).behind_the_balancer() as clients:
        for number in range(rounds):
            trial = Trial("storm", number)
            began = time.monotonic()
            try:
                trial.what = one_round(running, rng)
            except AssertionError as error:
                trial.violations.append(str(error))
            seen = clients.take()
            trial.answers, trial.seconds = seen.answers, time.monotonic() - began
            trial.violations += seen.violations
            yield trial
            if trial.violations:
                return


def one_round(running: Fleet, rng: np.random.Generator) -> str:
    """Publishes, goes back, pins, publishes a version, and restarts a server."""
    for _ in range(_DELTAS):
        running.publish(count=int(rng.integers(4, 200)))
        if rng.random() < 0.5:
            running.reach(running.newest, SETTLE_S)
    running.reach(running.newest, SETTLE_S)
    done = [f"{_DELTAS} deltas"]
    if has_fleet_mode():
        back = int(rng.integers(1, 3))
        running.command(running.any_name(), "rollback", {"steps": back})
        target = running.snapshots[running.newest.ancestors[-back]]
        running.reach(target, SETTLE_S)
        if rng.random() < 0.5:
            running.command(running.any_name(), "resume")
            running.reach(running.newest, SETTLE_S)
            done.append(f"{back} back and resumed")
        else:
            # What the trainer makes next continues what is served.
            running.newest = target
            running.publish()
            running.reach(running.newest, SETTLE_S)
            done.append(f"{back} back and went on from there")
        running.command(running.any_name(), "pin")
        pinned = running.newest
        running.publish()
        time.sleep(1.5)
        running.reach(pinned, 5.0)
        running.command(running.any_name(), "resume")
        running.reach(running.newest, SETTLE_S)
        done.append("pinned and resumed")
    if rng.random() < 0.5:
        running.newest = running.note(running.world.publish(parent=running.newest))
        running.model.put_version(running.newest.path)
        running.reach(running.newest, SETTLE_S)
        done.append("a version")
    name = running.any_name()
    running.restart(name)
    running.publish()
    running.balancer.wait_for("UP", [name])
    running.reach(running.newest, SETTLE_S)
    return ", ".join([*done, f"{name} restarted"])
