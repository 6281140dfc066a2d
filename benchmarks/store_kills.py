"""Claim: kill -9 at any moment of its work leaves a store that opens at one snapshot, with everything acknowledged.

A child process loads versions, merges deltas, writes words, adopts, compacts, closes and opens again, and reports on a
pipe what it begins and what is done. It is killed after a random time. Then the store is opened here: it must be at the
last snapshot that was acknowledged or at the one in flight, every row of the universe must be that snapshot's own, and
the store's own check must find nothing. Then the next child goes on from there.

    python -m benchmarks.store_kills              # 100 kills, 30,000 ids: about four minutes
    python -m benchmarks.store_kills --quick      # 10 kills

The page cache survives a kill, so this says nothing about power loss; that is what fsync is for.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.machine import machine_line
from benchmarks.planted_rows import ABSENT, PlantedRows, PlantedState, PlantedVersion, snapshot_name
from storage.features import Jagged
from storage.specs import LookupSpec
from storage.tiers.limits import StoreLimits
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.tiered import TieredStore

ROOT = Path(__file__).parent.parent
SEED = 11
BUDGETS = (None, 400_000, 20_000, 0)
LIMITS = StoreLimits(ssd=SsdOptions(compaction_bytes=100_000, compaction_share=0.05))
LONGEST_S = 0.8


def world_of(ids: int) -> PlantedRows:
    """Returns the tables that parent and child agree on."""
    return PlantedRows({"item": (16, ids), "user": (4, max(100, ids // 5))}, seed=SEED)


@dataclass(frozen=True)
class Place:
    """The position of the child in its work."""

    #: Generation of the version that was loaded.
    version: int = 0
    #: Generation that the rows are at.
    at: int = 0
    #: The owner's word.
    word: int = 0
    #: Whether anything was ever loaded.
    loaded: bool = False


class History:
    """Computes states by generation: a version starts anew, a delta changes the previous state."""

    def __init__(self, ids: int) -> None:
        self.world = world_of(ids)
        self._known: dict[tuple[int, int], PlantedState] = {}

    def version(self, generation: int) -> PlantedVersion:
        """Returns a version whose rows were all written by this generation."""
        return self.world.version(self.state(generation, generation))

    def state(self, version: int, at: int) -> PlantedState:
        """Returns the state of the tables after the deltas version + 1 .. at."""
        if (version, at) not in self._known:
            if version == at:
                first = self.world.first()
                wrote = {name: np.where(old == ABSENT, ABSENT, at) for name, old in first.wrote.items()}
                state = PlantedState(at, wrote)
            else:
                state = self.world.change(self.state(version, at - 1), at, one_in=one_in(at))[0]
            self._known[version, at] = state
        return self._known[version, at]


def one_in(generation: int) -> int:
    """Returns n, where a delta of this generation changes one id in n."""
    return (2, 25, 400)[generation % 3]


def work(folder: Path, ids: int, place: Place, seed: int) -> None:
    """Runs the child until it is killed. Prints `do WHAT NUMBER` before and `done WHAT NUMBER` after each step."""
    history, rng = History(ids), random.Random(seed)

    def say(verb: str, what: str, number: int) -> None:
        print(verb, what, number, flush=True)

    fresh = place.at  # a generation is never used twice, not even one of an earlier child that was killed
    while True:
        say("do", "open", 0)
        store = TieredStore.open(folder, history.world.specs(), dram_bytes=rng.choice(BUDGETS), limits=LIMITS)
        say("do", "load", place.version)
        store.load(history.version(place.version))
        say("done", "load", place.version)
        for _ in range(rng.randint(3, 12)):
            dice = rng.random()
            if dice < 0.6:
                fresh += 1
                # A number that was abandoned by a kill is skipped by everyone: the parent passes the current one.
                state = history.state(place.version, place.at)
                _, delta = history.world.change(state, fresh, one_in=one_in(fresh))
                say("do", "stage", fresh)
                overlay = store.stage(delta, spill=rng.random() < 0.4)
                say("do", "merge", fresh)
                store.merge(overlay, at=delta.snapshot, markers={"generation": str(fresh)})
                say("done", "merge", fresh)
                place = replace(place, at=fresh)
            elif dice < 0.75:
                place = replace(place, word=place.word + 1)
                say("do", "word", place.word)
                store.set_markers({"word": str(place.word)})
                say("done", "word", place.word)
            elif dice < 0.9:
                say("do", "compact", 0)
                for number in store.ssd.book.durable():
                    store.ssd.compact(number)
                say("done", "compact", 0)
            elif dice < 0.95:
                _read_some(store, history, rng)
            else:
                break
        say("do", "close", 0)
        store.close()
        say("done", "close", 0)
        if rng.random() < 0.25:
            # Another version replaces this one: everything is loaded anew.
            fresh += 1
            place = replace(place, version=fresh, at=fresh)


def _read_some(store: TieredStore, history: History, rng: random.Random) -> None:
    """Looks up some rows, which fills DRAM in the background."""
    for name, ids in history.world.ids.items():
        asked = np.array(rng.sample(ids.tolist(), 100))
        store.plan([LookupSpec("x", name, "none", 1)]).lookup(100, [Jagged(asked, np.arange(101))], timeout_s=1e-3)


@dataclass
class Ended:
    """The output of a killed child."""

    place: Place
    #: The step in flight when it was killed, if any.
    begun: tuple[str, int] | None
    steps: Counter[str]


def killed_child(folder: Path, ids: int, place: Place, seed: int) -> Ended:
    """Runs a child for a random time, kills it, and reads its output until then."""
    code = "import sys; from benchmarks.store_kills import child; child(sys.argv[1:])"
    given = [str(folder), ids, place.version, place.at, place.word, seed]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, given)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, LONGEST_S))
    alive = process.poll() is None
    process.kill()
    said = first + process.stdout.read()
    error = process.stderr.read()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    if not alive:
        raise AssertionError(f"the child ended by itself: {error.decode()}")
    return told(said.decode(), place)


def told(said: str, place: Place) -> Ended:
    """Follows a child's output from where it began. A line that the kill truncated is ignored."""
    begun: tuple[str, int] | None = None
    steps: Counter[str] = Counter()
    for line in said.split("\n")[:-1]:
        verb, what, text = line.split()
        number = int(text)
        if verb == "do":
            begun = (what, number)
            continue
        steps[what] += 1
        begun = None
        if what == "merge":
            place = replace(place, at=number)
        elif what == "word":
            place = replace(place, word=number)
        elif what == "load":
            at = place.at if number == place.version else number
            place = replace(place, version=number, at=at, loaded=True)
    return Ended(place, begun, steps)


def reopened(folder: Path, history: History, ended: Ended, seed: int) -> Place:
    """Opens the store and checks it; returns its place. Raises AssertionError."""
    place, begun = ended.place, ended.begun
    budget = random.Random(seed).choice(BUDGETS)
    with TieredStore.open(folder, history.world.specs(), dram_bytes=budget, limits=LIMITS) as store:
        places = {snapshot_name(SEED, place.at) if place.loaded else "": place}
        if begun is not None and begun[0] == "merge":
            places[snapshot_name(SEED, begun[1])] = replace(place, at=begun[1])
        if begun is not None and begun[0] == "load" and (begun[1] != place.version or not place.loaded):
            # A load that was cut off leaves a store at no snapshot, and is repeated by whoever wanted the version.
            loaded = replace(place, version=begun[1], at=begun[1])
            places.update({"": loaded, snapshot_name(SEED, loaded.at): loaded})
        assert store.at in places, f"the store is at {store.at!r}, expected one of {list(places)}; {ended}"
        found = places[store.at]
        generation = store.marker("generation")
        word = store.marker("word")
        store.load(history.version(found.version))
        assert store.at == snapshot_name(SEED, found.at)
        if found.at != found.version:
            assert generation == str(found.at), f"the rows are at {found.at}, the owner's word says {generation}"
        words = [place.word, place.word + 1] if begun is not None and begun[0] == "word" else [place.word]
        assert int(word or 0) in words, f"the word is {word}, expected one of {words}"
        _check_rows(store, history, history.state(found.version, found.at))
        for tier, overlays in zip(store.dram, store.overlay_tables, strict=True):
            tier.check_integrity()
            overlays.check_integrity()
    return replace(found, word=int(word or 0), loaded=True)


def _check_rows(store: TieredStore, history: History, state: PlantedState) -> None:
    """Checks every id of the universe, by the same lookup that requests use."""
    for name, ids in history.world.ids.items():
        result = store.plan([LookupSpec("x", name, "none", 1)]).lookup(len(ids), [Jagged(ids, np.arange(len(ids) + 1))])
        rows, found = history.world.expected(state, name, np.arange(len(ids)))
        mask = result.masks[0]
        assert mask is not None
        wrong = np.flatnonzero((mask[:, 0] != found) | (result.outputs[0][:, 0] != rows).any(1))
        if len(wrong):
            wrote = state.wrote[name][wrong[:5]]
            raise AssertionError(
                f"table {name}, generation {state.generation}: {len(wrong)} of {len(ids)} rows are wrong, such as "
                f"ids {ids[wrong[:5]]}, written by {wrote}: got {result.outputs[0][wrong[:5], 0]}"
            )


def run(folder: Path, trials: int, ids: int, *, seed: int = 1) -> Counter[str]:
    """Kills `trials` children; counts what was in flight when they died."""
    history, place = History(ids), Place()
    inflight: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for trial in range(trials):
        ended = killed_child(folder, ids, place, seed * 10_000 + trial)
        before, place = place, reopened(folder, history, ended, seed + trial)
        what = ended.begun[0] if ended.begun else "nothing"
        inflight[what] += 1
        done.update(ended.steps)
        print(
            f"kill {trial + 1:>3} in {what:<8} version {before.version} at {before.at} -> version {place.version} "
            f"at {place.at}; {sum(ended.steps.values())} steps acknowledged, all there",
            flush=True,
        )
    print(f"acknowledged before kills: {dict(done)}")
    return inflight


def child(arguments: list[str]) -> None:
    """Runs the child process."""
    folder, ids, version, at, word, seed = arguments
    work(Path(folder), int(ids), Place(int(version), int(at), int(word)), int(seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 kills")
    parser.add_argument("--ids", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(machine_line())
    trials = 10 if options.quick else 100
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        inflight = run(Path(folder) / "store", trials, options.ids, seed=options.seed)
    print(
        f"{trials} kills in {time.monotonic() - began:.0f} s, in flight: {dict(inflight)}; nothing acknowledged is "
        "lost, no snapshot is mixed"
    )


if __name__ == "__main__":
    main()
