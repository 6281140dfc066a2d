"""Restarts with one fault each: every file call that a restart makes fails once.

    python -m tests.faults.storm --sample 40          # of each world, drawn over all kinds of calls and files
    python -m tests.faults.storm --all                # every call; hours
    python -m tests.faults.storm --world rolled_back --point read:store/planted/state.json:1:EIO

Afterwards the model must be served exactly as an operator had decided, or not be ready and say why; its own retry, and
the next restart, must bring back what was decided. Ends with 1 when one did not.
"""

from __future__ import annotations

import argparse
import errno
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.faults import worlds
from tests.faults.injector import FAULTS, SHORT, Call, build, environment, listed
from tests.faults.restart import (
    RETRY_S,
    Restart,
    import_what_a_restart_imports,
    in_a_process,
    restart_in_a_process,
)
from tests.faults.verdicts import HARMLESS, Found, Wanted, judge, path_class
from tests.faults.worlds import Prepared

BUILD_S = 180.0
_PRELOADED = "FAULTS_PRELOADED"


def error_name(error: int) -> str:
    """Returns the name of an error as it is written on the command line."""
    return "short" if error == SHORT else errno.errorcode[error]


class Storm:
    """Lists the calls of a restart of one world, and injects faults into them."""

    def __init__(self, name: str, work: Path, retry_s: float = RETRY_S) -> None:
        """Builds the world.

        retry_s: how long a restart may take to recover by itself.
        """
        self.work = work
        self.retry_s = retry_s
        folder = work / name
        folder.mkdir()
        log = work / f"{name}.build.log"
        data, ended = in_a_process(lambda pipe: worlds.build(name, folder, pipe), log, BUILD_S)
        if not data:
            raise RuntimeError(f"the world {name} was not built ({ended}):\n{log.read_text()[-4000:]}")
        self.world: Prepared = worlds.finish(name, folder, data)
        self.store = work / f"{name}.store"
        self.world.store_to(self.store)
        import_what_a_restart_imports(self.world, self.store, work / f"{name}.imports.log")
        self.wanted, self.calls = self._without_a_fault()

    def _without_a_fault(self) -> tuple[Wanted, list[Call]]:
        self.world.store_to(self.store)
        log = self.work / f"{self.world.name}.calls"
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        found = restart_in_a_process(self.world, self.store, self.work / f"{self.world.name}.log", log=descriptor)
        os.close(descriptor)
        seen, decided = found.last or found.first, self.world.decided
        as_decided = (seen.served, seen.mode, seen.canary.partition(" ")[0]) == (
            *(decided.served, decided.mode, decided.canary),
        )
        if found.ended or found.refused or seen.wrong or not as_decided:
            raise RuntimeError(f"{self.world.name}: a restart without a fault is not right: {found}")
        return Wanted(seen, found.state, decided), listed(log)

    def points(self) -> list[tuple[Call, int]]:
        """Returns every call with the first fault of its kind, and the first call on each path also with the others."""
        return [
            (call, error)
            for call in self.calls
            for position, error in enumerate(FAULTS[call.kind])
            if position == 0 or call.nth == 1
        ]

    def sample(self, seed: int) -> Iterator[tuple[Call, int]]:
        """Orders the points so that every kind of call, file and fault comes early."""
        rng = random.Random(seed)
        groups: dict[tuple[str, str, int], list[tuple[Call, int]]] = {}
        for call, error in self.points():
            groups.setdefault((call.kind, path_class(self.world, self.store, call.path), error), []).append(
                (call, error)
            )
        for group in groups.values():
            rng.shuffle(group)
        order = sorted(groups)
        while order:
            rng.shuffle(order)
            for key in order:
                yield groups[key].pop()
            order = [key for key in sorted(order) if groups[key]]

    def strike(self, call: Call, error: int, worker: int = 0) -> Found:
        """Runs one restart with a fault, and one more without where the first proves too little."""
        store = self.store.with_name(f"{self.store.name}{worker}")
        moved = str(store) + call.path.removeprefix(str(self.store))
        there = Call(call.kind, moved if call.path.startswith(f"{self.store}/") else call.path, call.nth)
        self.world.store_to(store)
        output = self.work / f"{self.world.name}.{worker}.log"
        options = {"wanted": self.wanted.seen, "retry_s": self.retry_s}
        faulty = restart_in_a_process(self.world, store, output, call=there, error=error, **options)
        after: Restart | None = None
        if not faulty.fired and not faulty.ended:
            return Found(self.world.name, call, error, "not reached")
        if call.kind not in HARMLESS or faulty.last is not None or faulty.ended or faulty.refused:
            after = restart_in_a_process(self.world, store, output.with_suffix(".after.log"), **options)
        good, bad, detail = judge(self.wanted, faulty, after)
        return Found(self.world.name, call, error, good, bad, detail)

    def recipe(self, found: Found) -> str:
        """Returns the text that names a fault for `--point`."""
        path = found.call.path
        for root, name in ((self.store, "store"), (self.world.repository, "repository")):
            if path.startswith(f"{root}"):
                path = name + path[len(str(root)) :]
        return f"{found.call.kind}:{path}:{found.call.nth}:{error_name(found.error)}"

    def point(self, recipe: str) -> tuple[Call, int]:
        """Returns the point that a recipe names.

        The ids in it come from another world; any id matches them.
        """
        kind, path, nth, error = recipe.split(":")
        wanted = path_class(self.world, self.store, path)
        code = SHORT if error == "short" else getattr(errno, error)
        for call in self.calls:
            here = self.recipe(Found("", call, code)).split(":")[1]
            if call.kind == kind and call.nth == int(nth) and path_class(self.world, self.store, here) == wanted:
                return call, code
        raise SystemExit(f"{self.world.name}: a restart makes no call {recipe!r}")


def strike_all(
    storm: Storm, points: Sequence[tuple[Call, int]], jobs: int, until: float, report: bool = True
) -> list[Found]:
    """Strikes each point, in `jobs` processes; points that are left at the time `until` are skipped."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def work(worker: int) -> None:
        for call, error in points[worker::jobs]:
            if time.monotonic() >= until:
                break
            results.put(storm.strike(call, error, worker))
        results.put(None)

    processes = [context.Process(target=work, args=(worker,)) for worker in range(jobs)]
    for process in processes:
        process.start()
    found: list[Found] = []
    running = jobs
    while running:
        each = results.get()
        if each is None:
            running -= 1
            continue
        found.append(each)
        if report and each.bad:
            print(f"  {storm.recipe(each)}\n      {each.bad}: {each.detail[:300]}", flush=True)
    for process in processes:
        process.join()
    return found


def summary(storm: Storm, found: Sequence[Found], seconds: float) -> str:
    """Returns a summary: counts, and the failures by kind of call, file and what happened."""
    good = Counter(each.good for each in found if not each.bad)
    bad = Counter(
        (each.bad, each.call.kind, path_class(storm.world, storm.store, each.call.path), error_name(each.error))
        for each in found
        if each.bad
    )
    kinds = Counter(call.kind for call in storm.calls)
    lines = [
        f"{storm.world.name}: {len(storm.calls)} calls ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})",
        f"  {len(found)} restarts with a fault in {seconds:.0f} s, {sum(bad.values())} failures; else "
        + ", ".join(f"{n} {how}" for how, n in good.most_common()),
    ]
    by_bad: dict[str, list[str]] = {}
    for (what, kind, path, error), n in sorted(bad.items()):
        by_bad.setdefault(what, []).append(f"{kind} {path} {error}" + (f" ({n})" if n > 1 else ""))
    for what, where in by_bad.items():
        count = sum(n for (each, *_), n in bad.items() if each == what)
        lines += [f"  {what}: {count}", *(f"      {each}" for each in where)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", action="append", choices=list(worlds.WORLDS), help="default: all")
    parser.add_argument("--all", action="store_true", help="every point")
    parser.add_argument("--sample", type=int, default=40, help="points of each world")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for the points of each world")
    parser.add_argument("--retry", type=float, default=RETRY_S, help="seconds that a restart may take to mend itself")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--point", action="append", default=[], help="KIND:PATH:NTH:ERROR, as a failure prints it")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    parser.add_argument("--json", type=Path, help="writes every point there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        work = Path(os.path.realpath(options.keep or temporary))
        work.mkdir(parents=True, exist_ok=True)
        if _PRELOADED not in os.environ:
            library = build(work)
            status = os.spawnve(
                os.P_WAIT,
                sys.executable,
                [sys.executable, "-m", "tests.faults.storm", *sys.argv[1:]],
                environment(library, {_PRELOADED: "1", "OMP_NUM_THREADS": "1"}),
            )
            raise SystemExit(status)
        raise SystemExit(run(options, work))


def run(options: argparse.Namespace, work: Path) -> int:
    """Builds the worlds, strikes, prints; returns 1 when something was not as it must be."""
    import serving.server
    import storage.checkpoint.graph

    assert serving.server
    assert storage.checkpoint.graph
    everything: list[Found] = []
    for name in options.world or list(worlds.WORLDS):
        storm = Storm(name, work, options.retry)
        if options.point:
            points = [storm.point(recipe) for recipe in options.point]
        else:
            points = list(storm.sample(options.seed))
            points = points if options.all else points[: options.sample]
        began = time.monotonic()
        found = strike_all(storm, points, options.jobs, began + options.seconds)
        print(summary(storm, found, time.monotonic() - began), flush=True)
        everything += found
    failures = sum(bool(each.bad) for each in everything)
    print(f"{len(everything)} restarts with a fault, {failures} failures")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in everything], indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    main()
