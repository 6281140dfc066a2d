"""Runs overlays over a base table beside a dict for each snapshot, driven by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage._table import Lookup, OverlayTable, Table
from tests.support.examples import examples

DIM = 3
EDGES = [-1, 0, 2**63 - 1, -(2**63)]
EVERY = np.array([*EDGES, *range(1, 25)], np.int64)
ROW, REMOVED, SPILLED = 0, 1, 2
some_ids = st.sets(st.sampled_from(EVERY.tolist()), max_size=10)


def rows_for(ids: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((len(ids), DIM)).astype(np.float32)


@dataclass
class Snapshot:
    """Reference of one snapshot: the rows under its mask, and the delta that leads to it.

    overlay: the delta's overlay.
    changes: the delta's row of each id; None removes it.
    """

    rows: dict[int, np.ndarray]
    mask: int = 0
    overlay: int = -1
    changes: dict[int, np.ndarray | None] = field(default_factory=dict)
    spilled: set[int] = field(default_factory=set)


class OverlayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Table(DIM)
        self.table = OverlayTable(DIM)
        self.unpooled = Lookup([self.base], [(0, 2, 1)], [self.table])
        self.pooled = Lookup([self.base], [(0, 1, 0)], [self.table])
        self.chain = [Snapshot({})]  # The first entry is what the base alone shows.
        self.spilled: dict[int, dict[int, np.ndarray]] = {}  # Rows that are stored elsewhere, by overlay.

    @initialize(ids=some_ids, seed=st.integers(0, 2**32 - 1))
    def load(self, ids: set[int], seed: int) -> None:
        rows = rows_for(sorted(ids), seed)
        self.base.insert_or_assign(np.array(sorted(ids), np.int64), rows)
        self.chain[0].rows = dict(zip(sorted(ids), rows, strict=True))

    @precondition(lambda self: len(self.chain) < 6)
    @rule(
        overlay=st.integers(0, 62),
        rows=some_ids,
        removed=some_ids,
        spilled=some_ids,
        seed=st.integers(0, 2**32 - 1),
    )
    def stage(self, overlay: int, rows: set[int], removed: set[int], spilled: set[int], seed: int) -> None:
        if any(snapshot.mask >> overlay & 1 for snapshot in self.chain):
            return
        top = self.chain[-1]
        parts = {ROW: sorted(rows), REMOVED: sorted(removed - rows), SPILLED: sorted(spilled - rows - removed)}
        fresh = Snapshot(dict(top.rows), top.mask | 1 << overlay, overlay, spilled=set(parts[SPILLED]))
        for kind, ids in parts.items():
            values = rows_for(ids, seed + kind)
            self.table.stage(overlay, np.array(ids, np.int64), values if kind == ROW else None, kind)
            fresh.changes |= dict.fromkeys(ids) if kind == REMOVED else dict(zip(ids, values, strict=True))
        for id_, row in fresh.changes.items():
            if row is None:
                fresh.rows.pop(id_, None)
            else:
                fresh.rows[id_] = row
        self.spilled[overlay] = {id_: row for id_ in parts[SPILLED] if (row := fresh.changes[id_]) is not None}
        self.chain.append(fresh)
        staged, kinds = self.table.ids(overlay)
        assert staged.tolist() == [id_ for part in parts.values() for id_ in part]
        assert kinds.tolist() == [kind for kind, part in parts.items() for _ in part]

    @precondition(lambda self: len(self.chain) > 1)
    @rule()
    def roll_back(self) -> None:
        dropped = self.chain.pop()
        assert self.table.discard(dropped.overlay) == len(dropped.changes)
        del self.spilled[dropped.overlay]

    @precondition(lambda self: len(self.chain) > 1)
    @rule(seed=st.integers(0, 2**32 - 1), kept=st.integers(1, 5))
    def roll_back_below_a_newer_one(self, seed: int, kept: int) -> None:
        """Drops a delta that was set aside, after its successor, a child of the snapshot before, was staged."""
        held = self.chain.pop()
        free = next(i for i in range(63) if i != held.overlay and not self.chain[-1].mask >> i & 1)
        self.stage(free, set(EVERY[:kept].tolist()), set(), set(), seed)
        self.table.discard(held.overlay)
        del self.spilled[held.overlay]

    @precondition(lambda self: len(self.chain) > 1)
    @rule(limit=st.integers(1, 4))
    def merge(self, limit: int) -> None:
        """Merges into the base, then erases from the overlay in slices; all other snapshots stay visible meanwhile."""
        self.chain.pop(0)
        merged = self.chain[0]
        for id_, row in merged.changes.items():
            if row is None:
                self.base.erase(np.array([id_], np.int64))
            else:
                self.base.insert_or_assign(np.array([id_], np.int64), row[None])
        while self.table.discard(merged.overlay, limit):
            for snapshot in self.chain:
                self.check(snapshot, EVERY)
        for snapshot in self.chain:
            snapshot.mask &= ~(1 << merged.overlay)
        del self.spilled[merged.overlay]

    @rule(which=st.integers(0, 10), ids=st.lists(st.sampled_from(EVERY.tolist()), max_size=40))
    def look_up(self, which: int, ids: list[int]) -> None:
        self.check(self.chain[which % len(self.chain)], np.array(ids, np.int64))

    @rule(which=st.integers(0, 10))
    def find(self, which: int) -> None:
        line = self.chain[: which % len(self.chain) + 1]
        out, states = np.full((len(EVERY), DIM), 7, np.float32), np.full(len(EVERY), 7, np.uint8)
        overlays = np.full(len(EVERY), 7, np.uint8)
        covered = self.table.find(line[-1].mask, EVERY, out, states, overlays)
        assert covered == (states > 0).sum()
        for id_, row, state, overlay in zip(EVERY.tolist(), out, states, overlays, strict=True):
            newest = next((s for s in reversed(line) if id_ in s.changes and s.mask >> s.overlay & 1), None)
            assert overlay == (255 if newest is None else newest.overlay)
            if newest is None:
                assert state == 0
                continue
            change = newest.changes[id_]
            assert state == (3 if id_ in newest.spilled else 2 if change is None else 1)
            assert np.array_equal(row, change if change is not None and state == 1 else np.zeros(DIM, np.float32))

    @invariant()
    def sizes_agree(self) -> None:
        self.table.check_integrity()
        staged = [s for s in self.chain if s.overlay >= 0 and s.mask >> s.overlay & 1]
        assert self.table.size() == len({id_ for s in staged for id_ in s.changes})
        for snapshot in staged:
            assert self.table.entries(snapshot.overlay) == len(snapshot.changes)

    def check(self, snapshot: Snapshot, ids: np.ndarray) -> None:
        """Checks that both lookups show the snapshot, and nothing else."""
        n = len(ids)
        rows, found = np.empty((n, 1, DIM), np.float32), np.empty((n, 1), np.uint8)
        mean = np.empty((1, DIM), np.float32)
        self.run(self.unpooled, n, ids, np.arange(n + 1), rows, found, snapshot.mask)
        self.run(self.pooled, 1, ids, np.array([0, n]), mean, None, snapshot.mask)
        assert found[:, 0].tolist() == [int(id_ in snapshot.rows) for id_ in ids.tolist()]
        expected = np.zeros(DIM, np.float32)
        for id_, row in zip(ids.tolist(), rows[:, 0], strict=True):
            assert np.array_equal(row, snapshot.rows.get(id_, np.zeros(DIM, np.float32)))
            expected += row
        assert np.array_equal(mean[0], expected / np.float32(max(1, n)))

    def run(
        self,
        lookup: Lookup,
        batch: int,
        ids: np.ndarray,
        offsets: np.ndarray,
        out: np.ndarray,
        found: np.ndarray | None,
        mask: int,
    ) -> None:
        """Looks one feature up.

        The base is complete, so ids that it lacks are absent; spilled rows are supplied from outside.
        """
        lookup.begin(batch, [ids], [offsets], [out], [found], mask)
        missing, sources = lookup.missing(0).tolist(), lookup.missing_sources(0).tolist()
        supplied, states = np.zeros((len(missing), DIM), np.float32), np.zeros(len(missing), np.uint8)
        for i, (id_, source) in enumerate(zip(missing, sources, strict=True)):
            if source != 255:
                supplied[i], states[i] = self.spilled[source][id_], 1
        lookup.supply(0, supplied, states)
        assert sum(lookup.finish()) == len(ids)


TestOverlays = OverlayMachine.TestCase
TestOverlays.settings = settings(max_examples=examples(80), stateful_step_count=25, deadline=None)
