"""Runs faults one after the other under checked load, and says what must hold after each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.fleet import faults
from tests.faults.fleet.clients import Clients
from tests.faults.fleet.faults import Fault
from tests.faults.fleet.replicas import RETAINED, Fleet, fleet, has_fleet_mode
from tests.faults.fleet.waiting import until
from tests.faults.injector import build
from tests.support.balancer import NAMES

#: A fleet that has lost its holder waits 10 s for the lease, and a little for everything else.
SETTLE_S = 60.0
CLOCK = Path(__file__).parents[1] / "clock.c"
CLOCKS_S = (-1.0, 0.0, 1.0)


@dataclass
class Trial:
    """One fault and its outcome. violations: what must not be; empty when all was right."""

    scenario: str
    number: int
    what: str = ""
    seconds: float = 0.0
    answers: int = 0
    violations: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Returns a line for the terminal, and one for each violation."""
        word = "VIOLATED" if self.violations else "ok"
        head = f"{self.scenario} {self.number}: {word}, {self.seconds:.1f} s, {self.answers} answers; {self.what}"
        return "\n".join([head, *(f"    {each[:2000]}" for each in self.violations[:5])])


def options_of(scenario: str, folder: Path) -> dict[str, Any]:
    """Returns what the fleet of a scenario needs."""
    if scenario in ("store_5xx", "truncated"):
        return {"through_proxy": NAMES}
    if scenario == "cut_off":
        return {"through_proxy": NAMES[1:2]}
    if scenario == "clocks":
        library = str(build(folder, CLOCK))
        return {
            "environments": {
                name: {"LD_PRELOAD": library, "FAULTS_CLOCK_S": str(shift)}
                for name, shift in zip(NAMES, CLOCKS_S, strict=True)
            }
        }
    return {}


def fault_of(scenario: str, outage_s: float) -> Fault:
    """Returns the fault of a scenario."""
    found: Mapping[str, Fault] = {
        "kill_holder": faults.kill_holder,
        "kill_stager": faults.kill_stager,
        "kill_two": faults.kill_two,
        "new_server": faults.new_server,
        "cut_off": faults.cut_off,
        "kill_child": faults.kill_child,
        "kill_publisher": faults.kill_publisher,
        "forgotten_write": faults.forgotten_write,
        "two_publishers": faults.two_publishers,
        "store_5xx": faults.store_5xx(outage_s),
        "truncated": faults.truncated,
        "clocks": faults.switch,
        "rolling": rolling,
        "rollback": rollback,
    }
    return found[scenario]


#: Faults after which nothing may be answered from an older snapshot to a caller who asks for that.
FAULTS = (
    "kill_holder",
    "kill_stager",
    "kill_two",
    "new_server",
    "cut_off",
    "kill_child",
    "kill_publisher",
    "forgotten_write",
    "two_publishers",
    "store_5xx",
    "truncated",
    "clocks",
    "rolling",
)
SCENARIOS = (*FAULTS, "rollback")


def run(scenario: str, folder: Path, *, count: int, seed: int, outage_s: float, **options: Any) -> Iterator[Trial]:
    """Runs trials; after a violation, the next one gets a new fleet, and the folder of the old one stays."""
    rng = np.random.default_rng(seed)
    fault = fault_of(scenario, outage_s)
    number = 0
    while number < count:
        place = folder / f"{scenario}-{number}"
        place.mkdir(parents=True)
        with (
            fleet(place, seed=seed + number, **options_of(scenario, place), **options) as running,
            _clients(running, scenario) as clients,
        ):
            while number < count:
                trial = one(scenario, number, running, clients, fault, rng)
                number += 1
                yield trial
                if trial.violations:
                    break


def _clients(running: Fleet, scenario: str) -> Clients:
    clients = Clients(running).behind_the_balancer()
    return clients.monotonic() if scenario in FAULTS else clients


def one(scenario: str, number: int, running: Fleet, clients: Clients, fault: Fault, rng: np.random.Generator) -> Trial:
    """Does one fault and judges it."""
    trial = Trial(scenario, number)
    began = time.monotonic()
    pids = {name: running.servers[name].process.pid for name in running.names}
    before = len(running.places)
    try:
        trial.what = fault(running, rng)
        faulted = time.monotonic()
        running.bring_back()
        newest = running.publish()
        running.reach(newest, SETTLE_S)
        trial.what += f"; a new snapshot everywhere after {time.monotonic() - faulted:.1f} s"
        until(
            lambda: set(running.balancer.states().values()) == {"UP"},
            lambda: f"the balancer sees {running.balancer.states()}",
            SETTLE_S,
        )
        trial.violations += skipped(running, before, pids)
    except AssertionError as error:
        trial.violations.append(str(error))
    seen = clients.take()
    trial.answers = seen.answers
    trial.violations += seen.violations
    trial.seconds = time.monotonic() - began
    return trial


def skipped(running: Fleet, before: int, pids: Mapping[str, int]) -> list[str]:
    """Names the published snapshots that a server which lived through the trial has left out."""
    line = {*running.newest.ancestors, running.newest.id}
    wanted = [running.snapshots[name] for name, place in running.places.items() if place >= before and name in line]
    wanted = wanted[-RETAINED // 2 :]  # what servers keep, and what waited for the trial before
    found = []
    for name, pid in pids.items():
        if running.servers[name].process.pid != pid:
            continue
        there = {entry["id"] for entry in running.report(name).get("snapshots", [])}
        found += [f"{name} has skipped {each.name}" for each in wanted if each.id not in there]
    return found


def rolling(running: Fleet, rng: np.random.Generator) -> str:
    """Restarts one server after the other, in any order, and publishes meanwhile."""
    took = []
    for name in rng.permutation(running.names):
        began = time.monotonic()
        running.restart(str(name))
        running.publish()
        running.balancer.wait_for("UP", [str(name)])
        took.append(time.monotonic() - began)
    return "restarts took " + ", ".join(f"{each:.1f} s" for each in took)


def rollback(running: Fleet, rng: np.random.Generator) -> str:
    """Goes back by one command to one server, which all obey within a second, and forward again."""
    assert has_fleet_mode(), "only a fleet goes back by one command"
    line = [running.publish() for _ in range(3)]
    running.reach(line[-1], SETTLE_S)
    steps = int(rng.integers(1, 3))
    began = time.monotonic()
    running.command(running.any_name(), "rollback", {"steps": steps})
    returned = time.monotonic() - began
    running.reach(line[-1 - steps], SETTLE_S)
    took = time.monotonic() - began
    assert took < 1.0 + 0.1, f"a rollback of {steps} took {took:.2f} s until all replicas served it"
    running.command(running.any_name(), "resume")
    running.reach(line[-1], SETTLE_S)
    return f"{steps} back everywhere after {took:.2f} s, the command returned after {returned:.2f} s"
