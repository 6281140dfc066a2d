"""Runs a store under all load at once: readers, deltas, rollbacks, merges, compactions, changed budgets, reopenings.

Every row that a reader gets is compared with what the snapshot that it pinned must hold. Memory, open files and the
store's folder are watched: they may not grow with time.

    python -m tests.soak.store --seconds 600
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planted_rows import PlantedRows, snapshot_name
from storage.features import Jagged
from storage.specs import LookupSpec
from storage.tiers.limits import StoreLimits
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.ssd.options import SsdOptions
from storage.tiers.tiered import TieredStore
from tests.soak.snapshots import Snapshot, Snapshots, Stopped
from tests.soak.watch import Watch

TABLES = {"user": (4, 20_000), "item": (16, 40_000), "word": (32, 4_000)}
FEATURES = (
    LookupSpec("user", "user", "none", 1),
    LookupSpec("item", "item", "none", 1),
    LookupSpec("items", "item", "sum"),
    LookupSpec("words", "word", "sum"),
)
BAG = 5
# Changes of a table are compacted into its page file as soon as they reach a twentieth of the file.
LIMITS = StoreLimits(ssd=SsdOptions(compaction_bytes=50_000, compaction_share=0.05))
KEPT = 6  # Number of deltas that stay unmerged.
READERS = 3
_MORE_S = 60.0
_ROW_BYTES = 16 * 4 + 28
WHOLE = sum(count for _, count in TABLES.values()) * _ROW_BYTES
SHARES = (0.0, 0.01, 0.1, 0.4, 1.5, None)


class Complaints(logging.Handler):
    """Collects the log messages of the store's own threads about failures that no caller waits for."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message with its traceback."""
        if len(self.said) < 100:
            self.said.append(logging.Formatter().format(record))


class Soak:
    """One run over a store in a folder.

    counts: how often each operation was done.
    """

    readers = READERS

    def __init__(self, folder: Path, *, seed: int = 1, row_type: str = "fp32") -> None:
        self.world = PlantedRows(TABLES, seed=seed, row_type=row_type)
        self.folder = folder
        self.seed = seed
        self.counts: Counter[str] = Counter()
        first = self.world.first()
        self.version = self.world.version(first)
        self.base = first  # The state of the store's base.
        self.generation = 0
        self.dram_bytes: int | None = WHOLE // 10
        self.store = self._open()
        snapshot = Snapshot(first, {}, 0)
        self.snapshots = Snapshots(snapshot, [snapshot])
        self.failures: list[BaseException] = []
        self.watch = Watch(folder)
        self.complaints = Complaints()
        self._store_lock = threading.Lock()  # Held to reopen, and by users of the store without a pin.

    def run(self, seconds: float, wanted: Sequence[str] = ()) -> None:
        """Runs the soak; raises the first error of any of its threads.

        wanted: operations that must have been done; a busy machine gets a minute more.
        """
        deadline = time.monotonic() + seconds
        work: list[Callable[[], None]] = [self._write, self._budgets, self._compact, self._sample]
        work += [lambda number=number: self._read(number) for number in range(self.readers)]  # type: ignore[misc]
        logging.getLogger("storage").addHandler(self.complaints)
        threads = [threading.Thread(target=self._guard, args=(each,), daemon=True) for each in work]
        for thread in threads:
            thread.start()
        while not self.failures:
            late = time.monotonic() - deadline
            if late > 0 and (late > _MORE_S or all(self.counts[what] for what in wanted)):
                break
            time.sleep(0.05)
        self.snapshots.stop()
        for thread in threads:
            thread.join()
        logging.getLogger("storage").removeHandler(self.complaints)
        self.store.close()
        if self.failures:
            raise self.failures[0]
        assert not self.complaints.said, f"the store complained: {self.complaints.said[:3]}"
        self.watch.check()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            while not self.snapshots.stopped:
                work()
        except Stopped:
            pass
        except BaseException as error:
            self.failures.append(error)
            self.snapshots.stop()

    def _read(self, number: int) -> None:
        """Looks rows up until the store is reopened; then with a plan of the new one."""
        rng = np.random.default_rng([self.seed, number, self.counts["reopened"]])
        store, plan = None, None
        while True:
            snapshot = self.snapshots.pin()
            try:
                if plan is None or store is not self.store:
                    store = self.store
                    plan = store.plan(FEATURES)
                self._lookup(plan, snapshot, rng)
            finally:
                self.snapshots.unpin(snapshot)

    def _lookup(self, plan: LookupPlan, snapshot: Snapshot, rng: np.random.Generator) -> None:
        batch = int(rng.choice([1, 8, 64, 512]))
        timeout = float(rng.uniform(0, 2e-3)) if rng.random() < 0.2 else None
        places = [self._places(spec, batch, rng) for spec in FEATURES]
        ids = [
            Jagged(self.world.ids[spec.table][at], np.arange(batch + 1) * (len(at) // batch))
            for spec, at in zip(FEATURES, places, strict=True)
        ]
        result = plan.lookup(batch, ids, timeout_s=timeout, mask=snapshot.mask)
        missing = 0
        for spec, at, out, mask in zip(FEATURES, places, result.outputs, result.masks, strict=True):
            rows, found = self.world.expected(snapshot.state, spec.table, at)
            if spec.pooling == "sum":
                want = rows.reshape(batch, -1, rows.shape[1]).sum(1)
                if not result.counts.unresolved:
                    assert np.array_equal(out, want), self._wrong(snapshot, spec, at, out, want)
                continue
            assert mask is not None
            late = found & (mask[:, 0] == 0)
            missing += int(np.count_nonzero(late))
            rows[late] = 0
            assert np.array_equal(mask[:, 0] == 1, found & ~late), self._wrong(snapshot, spec, at, out[:, 0], rows)
            assert np.array_equal(out[:, 0], rows), self._wrong(snapshot, spec, at, out[:, 0], rows)
        assert missing <= result.counts.unresolved, "a row that is there was answered as absent"
        self.counts["lookups"] += 1
        self.counts["rows checked"] += sum(map(len, places))
        self.counts["unresolved"] += result.counts.unresolved

    def _places(self, spec: LookupSpec, batch: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Draws nine of ten places near the middle of the universe, where ids are small, and the rest anywhere."""
        count = len(self.world.ids[spec.table])
        size = batch * (1 if spec.pooling == "none" else BAG)
        near = (count // 2 + rng.standard_normal(size) * count / 40).astype(np.int64) % count
        return np.where(rng.random(size) < 0.1, rng.integers(0, count, size), near)

    def _wrong(self, snapshot: Snapshot, spec: LookupSpec, at: Any, got: Any, want: Any) -> str:
        row = int(np.flatnonzero((got != want).any(1))[:1].sum())
        where = at.reshape(len(got), -1)[row]
        ids = self.world.ids[spec.table][where]
        wrote = snapshot.state.wrote[spec.table][where]
        others = [
            generation
            for generation in range(self.generation + 1)
            if np.array_equal(self.world.rows(spec.table, where, generation).sum(0), got[row])
        ]
        return (
            f"generation {snapshot.state.generation}, feature {spec.feature}, row {row}: ids {ids}, "
            f"written by {wrote}: got {got[row]}, want {want[row]}; as of generations {others}; "
            f"base {self.base.generation}, chain {list(snapshot.chain)}, mask {snapshot.mask:b}, {dict(self.counts)}"
        )

    def _write(self) -> None:
        rng = np.random.default_rng([self.seed, 1000])
        while not self.snapshots.stopped:
            dice = rng.random()
            if dice < 0.70:
                self._stage(rng)
            elif dice < 0.82:
                self._roll_back(rng)
            elif dice < 0.97:
                self._merge_down(int(rng.integers(0, KEPT)))
            else:
                self._reopen()
            self._merge_down(KEPT)

    def _stage(self, rng: np.random.Generator) -> None:
        parent = self.snapshots.served
        self.generation += 1
        state, delta = self.world.change(parent.state, self.generation, one_in=int(rng.choice([3, 30, 300])))
        number = self.store.stage(delta, spill=True if rng.random() < 0.25 else None)
        if rng.random() < 0.1:  # As if validation had refused the delta.
            self.store.discard(number)
            self.counts["refused"] += 1
            return
        self._serve(Snapshot(state, {**parent.chain, number: delta}, parent.mask | 1 << number))
        self.counts["deltas"] += 1

    def _roll_back(self, rng: np.random.Generator) -> None:
        kept = self.snapshots.kept
        target = kept[int(rng.integers(0, len(kept)))]
        self._serve(target)
        if target is not kept[-1]:
            self.counts["rollbacks"] += 1
        if rng.random() < 0.5:  # The snapshots above it are given up for good.
            self._forget([snapshot for snapshot in kept if snapshot is not target and _above(snapshot, target)])

    def _serve(self, snapshot: Snapshot) -> None:
        self.snapshots.serve(snapshot)

    def _forget(self, gone: list[Snapshot]) -> None:
        before = {number for snapshot in self.snapshots.kept for number in snapshot.chain}
        self.snapshots.drop(gone)
        for number in sorted(before - {n for snapshot in self.snapshots.kept for n in snapshot.chain}, reverse=True):
            self.store.discard(number)

    def _merge_down(self, most: int) -> None:
        while len(self.snapshots.served.chain) > most:
            oldest = next(iter(self.snapshots.served.chain))
            # Snapshots without this overlay in their chain can no longer be restored.
            self._forget([snapshot for snapshot in self.snapshots.kept if oldest not in snapshot.chain])
            delta = self.snapshots.served.chain[oldest]
            self.store.merge(oldest, at=delta.snapshot, markers={"generation": delta.snapshot})
            for snapshot in self.snapshots.kept:
                snapshot.chain.pop(oldest)
            self.base = delta.applied_to(self.base)
            assert self.store.at == delta.snapshot == self.store.marker("generation")
            self.counts["merges"] += 1
        if not self.snapshots.served.chain and len(self.snapshots.kept) == 1:
            self._adopt()

    def _adopt(self) -> None:
        """Publishes a version of the rows that the base has, as a trainer would."""
        if self.version.snapshot != self.store.at:
            version = self.world.version(self.base)
            self.store.adopt(version)
            self.version = version
            self.counts["adopted"] += 1

    def _reopen(self) -> None:
        with self._store_lock:
            self.snapshots.halt()
            served = self.snapshots.served
            self.store.close()
            self.store = self._open()
            assert self.store.at == snapshot_name(self.seed, self.base.generation)
            snapshot = Snapshot(self.base, {}, 0)
            kept, state = [snapshot], self.base
            for delta in served.chain.values():
                number = self.store.stage(delta)
                state = delta.applied_to(state)
                snapshot = Snapshot(state, {**snapshot.chain, number: delta}, snapshot.mask | 1 << number)
                kept.append(snapshot)
            self.snapshots.served, self.snapshots.kept = snapshot, kept
            self.counts["reopened"] += 1
            self.snapshots.go_on()

    def _open(self) -> TieredStore:
        store = TieredStore.open(self.folder, self.world.specs(), dram_bytes=self.dram_bytes, limits=LIMITS)
        store.load(self.version)
        return store

    def _budgets(self) -> None:
        rng = np.random.default_rng([self.seed, 2000])
        while not self.snapshots.stopped:
            time.sleep(float(rng.uniform(0.0, 0.4)))
            with self._store_lock:
                if self.snapshots.stopped:
                    return
                share = SHARES[int(rng.integers(len(SHARES)))]
                self.dram_bytes = None if share is None else int(WHOLE * share)
                self.store.set_dram_bytes(self.dram_bytes)
                self.counts["budget changes"] += 1
                if rng.random() < 0.05:
                    self.store.check_integrity()
                    self.counts["integrity checks"] += 1

    def _compact(self) -> None:
        time.sleep(0.3)
        with self._store_lock:
            if self.snapshots.stopped:
                return
            for number in self.store.ssd.book.durable():
                self.counts["compactions"] += self.store.ssd.compact(number)

    def _sample(self) -> None:
        self.watch.sample()
        time.sleep(0.25)


def _above(snapshot: Snapshot, target: Snapshot) -> bool:
    return len(snapshot.chain) > len(target.chain) and all(number in snapshot.chain for number in target.chain)


def state_line(counts: Counter[str]) -> str:
    """Returns the number of each operation, in one line."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder) / "store", seed=options.seed)
        soak.run(options.seconds)
    print(f"{options.seconds:g} s: {state_line(soak.counts)}; every row its snapshot's own")
    print(soak.watch.line())


if __name__ == "__main__":
    main()
