"""Deltas staged, shown, dropped, merged, adopted, crashes, restarts and new budgets in any order, beside a dict.

Stores of every budget, from all rows in DRAM to none, do the same at the same time and must give the same bits.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.specs import LookupSpec
from storage.tiers.tiered import TieredStore
from tests.support.examples import examples
from tests.support.storage.tier_rows import (
    EDGE_IDS,
    FEATURES,
    Delta,
    Tables,
    applied,
    budgets,
    check,
    jagged,
    make_delta,
    make_rows,
    open_store,
    random_ids,
    rows_of,
    tables_of,
)

DIMS = {"user": 4, "item": 8}
SEEDS = st.integers(0, 10_000)


def copy_as_it_is(folder: Path, to: Path) -> None:
    """Copies a folder while its owner is at work, as of one moment: what a kill would leave."""

    def listing() -> dict[Path, tuple[int, int]]:
        found = {}
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                found[path] = (path.stat().st_size, path.stat().st_mtime_ns)
        return found

    for _ in range(200):
        before = listing()
        with contextlib.suppress(FileNotFoundError, shutil.Error):
            shutil.copytree(folder, to)
            if listing() == before:
                return
        shutil.rmtree(to, ignore_errors=True)
    raise AssertionError(f"{folder} never stood still")


@dataclass
class Staged:
    """A snapshot: what its tables hold, and the deltas that lead to it from the base, by overlay number."""

    tables: Tables
    chain: dict[int, Delta]

    @property
    def mask(self) -> int:
        return sum(1 << number for number in self.chain)


class OverlayMachine(RuleBasedStateMachine):
    """Runs the stores beside a dict.

    `kept` are the snapshots that may still be read; the served one is among them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stores: dict[str, TieredStore] = {}

    @initialize(seed=st.integers(0, 3), users=st.integers(1, 20), items=st.integers(1, 100))
    def open(self, seed: int, users: int, items: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.version = make_rows(seed, users, items)
        self.budgets = {**budgets(self.version), "nothing": 0}
        self.lives = itertools.count()
        self.folders = dict.fromkeys(self.budgets, Path())
        self.base = tables_of(self.version)
        self.at = self.version.snapshot
        self.served = Staged(self.base, {})
        self.kept = [self.served]
        self.merged = 0  # Numbers that masks may still contain.
        self.stores = {}
        self._start()

    def _start(self) -> None:
        for name, budget in self.budgets.items():
            if self.folders[name] == Path():
                self.folders[name] = self._fresh(name)
            self.stores[name] = open_store(self.folders[name], self.version, budget)
            assert self.stores[name].at == self.at
        self.plans = {name: store.plan(FEATURES) for name, store in self.stores.items()}
        self.hurried = {
            table: {name: store.plan([LookupSpec("x", table, "none", 1)]) for name, store in self.stores.items()}
            for table in DIMS
        }

    def _fresh(self, name: str) -> Path:
        return Path(self.folder.name) / f"{name.replace(' ', '_')}_{next(self.lives)}"

    @rule(seed=SEEDS, batch=st.sampled_from([1, 20]), which=st.integers(0, 100), old_bits=st.booleans())
    def lookup(self, seed: int, batch: int, which: int, old_bits: bool) -> None:
        snapshot = self.kept[which % len(self.kept)]
        mask = snapshot.mask | (self.merged if old_bits else 0)
        rows = rows_of(snapshot.tables, DIMS)
        ids = random_ids(rows, batch, np.random.default_rng(seed))
        if seed % 3 == 0:
            batch, ids = len(EDGE_IDS), [jagged([[i] for i in EDGE_IDS]) for _ in FEATURES]
        results = [plan.lookup(batch, ids, mask=mask) for plan in self.plans.values()]
        for result in results:
            check(rows, FEATURES, ids, result)
            for a, b in zip(results[0].outputs, result.outputs, strict=True):
                assert a.tobytes() == b.tobytes()

    @rule(seed=SEEDS, timeout_ms=st.sampled_from([0.0, 0.05, 1.0]), which=st.integers(0, 100))
    def lookup_in_a_hurry(self, seed: int, timeout_ms: float, which: int) -> None:
        """Rows that did not come in time are counted and zero; all others are right."""
        snapshot = self.kept[which % len(self.kept)]
        rng = np.random.default_rng(seed)
        for table, plans in (("user", self.hurried["user"]), ("item", self.hurried["item"])):
            known = snapshot.tables[table]
            pool = np.array([*known, *EDGE_IDS, *range(-50, 50)], np.int64)
            ids = rng.choice(pool, 40)
            for name, plan in plans.items():
                result = plan.lookup(40, [jagged([[i] for i in ids.tolist()])], timeout_ms / 1000, mask=snapshot.mask)
                mask = result.masks[0]
                assert mask is not None
                late = 0
                for i, found, row in zip(ids.tolist(), mask[:, 0].tolist(), result.outputs[0][:, 0], strict=True):
                    if found:
                        assert row.tobytes() == known[i].tobytes(), name
                    else:
                        assert not row.any()
                        late += i in known
                counts = result.counts
                assert late <= counts.unresolved, f"{name}: a row that is there was answered as absent"
                assert counts.overlay + counts.dram + counts.ssd + counts.absent + counts.unresolved == 40

    @rule(name=st.sampled_from(["all", "a tenth", "nothing"]), share=st.sampled_from([None, 0.0, 0.02, 0.3, 1.2]))
    def another_budget(self, name: str, share: float | None) -> None:
        """Changes the budget of an open store, which keeps its plans.

        The store keeps its name and the new budget until it is opened again.
        """
        budget = None if share is None else int(share * self.version.bytes())
        self.stores[name].set_dram_bytes(budget)
        assert self.stores[name].dram_bytes == budget

    @rule(name=st.sampled_from(["all", "a tenth", "nothing"]))
    def filled(self, name: str) -> None:
        assert self.stores[name].wait_filled(60)

    @rule(name=st.sampled_from(["a tenth", "a handful"]))
    def hot_ids(self, name: str) -> None:
        self.stores[name].save_hot_ids()

    @rule()
    def what_is_in_dram_is_what_lies_on_the_disk(self) -> None:
        for store in self.stores.values():
            store.check_integrity()

    @rule(name=st.sampled_from(["enough", "a tenth", "a handful", "nothing"]))
    def drain(self, name: str) -> None:
        self.stores[name].drain()

    @precondition(lambda self: len(self.served.chain) < 6)
    @rule(seed=SEEDS, spill=st.booleans(), shown=st.booleans())
    def stage(self, seed: int, spill: bool, shown: bool) -> None:
        delta = make_delta(self.served.tables, DIMS, np.random.default_rng(seed))
        (number,) = {store.stage(delta, spill=spill) for store in self.stores.values()}
        if not shown:  # As if validation had refused the delta.
            for store in self.stores.values():
                store.discard(number)
            return
        self.served = Staged(applied(self.served.tables, delta), {**self.served.chain, number: delta})
        self.kept.append(self.served)

    @rule(which=st.integers(0, 100))
    def roll_back_or_forward(self, which: int) -> None:
        self.served = self.kept[which % len(self.kept)]

    @precondition(lambda self: self.served.chain)
    @rule(interrupted=st.sampled_from(["", "merge_file", "merge_ingest", "merge_dram"]))
    def merge(self, interrupted: str) -> None:
        oldest = next(iter(self.served.chain))
        # Snapshots without this overlay in their chain cannot be served any more.
        self._keep([snapshot for snapshot in self.kept if oldest in snapshot.chain])
        delta = self.served.chain[oldest]

        def interrupt(step: str) -> None:
            if step == interrupted:
                raise InterruptedError(step)

        for store in self.stores.values():
            if interrupted:
                with contextlib.suppress(InterruptedError):
                    store.merge(oldest, at=delta.snapshot, on_step=interrupt)
            store.merge(oldest, at=delta.snapshot)
        self.at = delta.snapshot
        self.base = applied(self.base, delta)
        self.merged |= 1 << oldest
        for snapshot in self.kept:
            del snapshot.chain[oldest]

    @precondition(lambda self: len(self.kept) > 1)
    @rule(which=st.integers(0, 100))
    def forget(self, which: int) -> None:
        gone = self.kept[which % len(self.kept)]
        if gone is not self.served:
            self._keep([snapshot for snapshot in self.kept if snapshot is not gone])

    def _keep(self, kept: list[Staged]) -> None:
        before = {number for snapshot in self.kept for number in snapshot.chain}
        self.kept = kept
        for number in before - {number for snapshot in kept for number in snapshot.chain}:
            for store in self.stores.values():
                store.discard(number)

    @precondition(lambda self: not self.served.chain)
    @rule()
    def adopt(self) -> None:
        """Publishes a version of the rows that the base has, as a trainer would."""
        self._keep([self.served])
        version = rows_of(self.base, DIMS)
        version.equals = self.at
        for store in self.stores.values():
            store.adopt(version)
        assert version.reads == 0
        self.version, self.at = version, version.snapshot

    @rule()
    def restart(self) -> None:
        for store in self.stores.values():
            store.close()
        self._start_again()

    @rule()
    def crash(self) -> None:
        """Ends the process: only the folders remain, as they are on the disk."""
        for name, store in self.stores.items():
            self.folders[name], before = self._fresh(name), self.folders[name]
            copy_as_it_is(before, self.folders[name])
            store.close()
            shutil.rmtree(before)
        self._start_again()

    def _start_again(self) -> None:
        self._start()
        chain = list(self.served.chain.values())
        self.served, self.merged = Staged(self.base, {}), 0
        self.kept = [self.served]
        for delta in chain:
            (number,) = {store.stage(delta) for store in self.stores.values()}
            self.served = Staged(applied(self.served.tables, delta), {**self.served.chain, number: delta})
            self.kept.append(self.served)

    @invariant()
    def sizes(self) -> None:
        live = {number for snapshot in getattr(self, "kept", []) for number in snapshot.chain}
        for name, store in self.stores.items():
            assert set(store.overlay_stats()) == live
            assert store.at == self.at
            for index, table in enumerate(("user", "item")):
                store.dram[index].check_integrity()
                store.overlay_tables[index].check_integrity()
                if name == "all" and store.dram_bytes is None and store.is_complete(index):
                    assert store.dram[index].size() == len(self.base[table])

    def teardown(self) -> None:
        for store in self.stores.values():
            store.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestOverlayMachine = OverlayMachine.TestCase
TestOverlayMachine.settings = settings(max_examples=examples(10), stateful_step_count=25, deadline=None)
