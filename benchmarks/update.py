"""Claims: readers keep their speed beside a writer of a million rows a second, and never see half a row.

Every row holds one value in all its columns, and every write gives a row a new value: a row that a reader finds with
two values in it is torn. All rows that are read beside the writer are checked. Reading and writing follow Zipf, so that
both meet at the same rows. The writer is a thread with a schedule; the readers use all other cores, one at least.

    python -m benchmarks.update            # 10 M ids: about a minute
    python -m benchmarks.update --quick
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from benchmarks._limits import ByteLimit
from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dram_world import Batches, draw, filled_table
from benchmarks.measure import Contestant, per_second, together, wait_for
from benchmarks.peers import PeerMissingError
from benchmarks.peers.process import PeerProcess
from benchmarks.traffic import Array, random_ids
from loadtest.popularity import zipf
from storage._table import Table

DIM = 64
WRITE_ROWS = 5_000
RATE = 1_000_000.0
KEPT = 0.9
MIDS = 1e-6
_COPY_BYTES = 64 << 20


def measure(run: Run) -> None:
    """Measures readers beside a writer; then the writer alone at full speed, beside torch."""
    ids = random_ids(run.size(10_000_000, 400_000))
    table = filled_table(ids, DIM)
    popularity = zipf(len(ids))
    readers = max(1, (os.cpu_count() or 2) - 1)
    read = [draw(ids, popularity, count=60, seed=10 + index) for index in range(readers)]
    written = draw(ids, popularity, count=200, size=WRITE_ROWS, seed=3)
    readers_beside_a_writer(run, table, read, written)
    writer_alone(run, table, written, len(ids))


class Writer:
    """Writes rows at a rate, on a thread of its own. A context manager."""

    def __init__(self, table: Table, written: Batches, rate: float) -> None:
        self.table, self.written, self.rate = table, written, rate
        self.rows, self.seconds = 0, 0.0
        self._rows = np.empty((written.size, table.dim), np.float32)
        self._generation = 0
        self._over, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def write(self, turn: int) -> None:
        """Writes one batch, with values that no row held before."""
        self._generation += 1
        self._rows[:] = np.float32(self._generation % (1 << 24))
        self.table.insert_or_assign(self.written.ids[turn % len(self.written)], self._rows)

    def __enter__(self) -> Writer:
        self._over.clear()
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        wait_for([self._ended])
        assert self._thread is not None
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        began = time.perf_counter()
        batches = 0
        try:
            while not self._over.is_set():
                self.write(batches)
                batches += 1
                ahead = began + batches * self.written.size / self.rate - time.perf_counter()
                if ahead > 0:
                    self._over.wait(ahead)
        except BaseException as error:
            self._failure = error
        self.rows += batches * self.written.size
        self.seconds += time.perf_counter() - began
        self._ended.set()


class Reader:
    """Finds batches and counts torn rows; only the finding is timed."""

    def __init__(self, table: Table, read: Batches, *, seconds: float) -> None:
        self.table, self.read, self.seconds = table, read, seconds
        self.torn = self.checked = 0
        self._turn = 0
        self._out = np.empty((read.size, table.dim), np.float32)
        self._found = np.empty(read.size, np.uint8)

    def run(self, _: int) -> float:
        """Returns ids a second."""
        spent, turns = 0.0, 0
        while spent < self.seconds:
            ids = self.read.ids[self._turn % len(self.read)]
            began = time.perf_counter()
            found = self.table.find(ids, self._out, self._found)
            spent += time.perf_counter() - began
            self._turn += 1
            turns += 1
            if found != len(ids):
                raise AssertionError(f"{len(ids) - found} ids were not found that were only ever written")
            self.torn += int((self._out != self._out[:, :1]).any(axis=1).sum())
            self.checked += len(ids)
        return turns * self.read.size / spent


def readers_beside_a_writer(run: Run, table: Table, read: list[Batches], written: Batches) -> None:
    """Measures the same readers with and without the writer, alternating."""
    seconds = 0.1 if run.quick else 0.4
    idle = [Reader(table, batches, seconds=seconds) for batches in read]
    busy = [Reader(table, batches, seconds=seconds) for batches in read]
    writer = Writer(table, written, RATE)
    rates: list[float] = []
    torn: list[float] = []
    all_busy = together([reader.run for reader in busy])

    def beside(turn: int) -> float:
        rows, taken, before = writer.rows, writer.seconds, sum(reader.torn for reader in busy)
        with writer:
            figure = all_busy(turn)
        rates.append((writer.rows - rows) / (writer.seconds - taken))
        torn.append(float(sum(reader.torn for reader in busy) - before))
        return figure

    samples = run.interleave({"idle": together([reader.run for reader in idle]), "ours": beside}, max_s=40.0)
    kept = rates[-len(samples.rounds) :] if samples.rounds else []
    run.report.compare(
        f"{len(read)} reader(s) beside a writer, d{DIM} Zipf",
        samples,
        "idle",
        unit="M ids/s",
        scale=MIDS,
        target=KEPT,
        note="against the same readers without the writer",
    )
    run.report.pairs(
        "what the writer reached beside them",
        [rate * MIDS for rate in kept],
        [RATE * MIDS] * len(kept),
        "asked for",
        unit="M rows/s",
        target=0.99,
    )
    checked = sum(reader.checked for reader in busy)
    run.report.pairs(
        "torn rows",
        torn,
        [0.0] * len(torn),
        "bound",
        unit="rows",
        target=1.0,
        less_is_better=True,
        note=f"of {checked:,} read beside the writer",
    )
    run.settle(samples)


def writer_alone(run: Run, table: Table, written: Batches, rows: int) -> None:
    """Measures rows a second at full speed, beside torch's index_copy_ and a plain copy of as many bytes."""
    writer = Writer(table, written, RATE)
    memory = ByteLimit(_COPY_BYTES)
    contestants: dict[str, Contestant] = {
        "ours": per_second(writer.write, WRITE_ROWS, piece_s=run.piece_s),
        "memcpy": per_second(lambda _: memory.copy(), memory.memory_bytes() / (4 * DIM), piece_s=run.piece_s),
    }
    with PeerProcess() as process:
        run.children.append(process.pid)
        try:
            version = process.build("index_copy", rows=rows, dim=DIM)
            process.take("written", unique_rows(written.numbers, rows), run.work)
            contestants["torch index_copy_"] = process.contestant(
                "index_copy", "written", WRITE_ROWS, piece_s=run.piece_s
            )
            run.report.remark(
                f"torch index_copy_: version {version}, one thread, row numbers; nobody may read meanwhile"
            )
        except PeerMissingError as missing:
            run.report.remark(f"torch: {missing}")
        samples = run.interleave(contestants)
    for name in list(contestants)[1:]:
        run.report.compare(
            f"writing rows, d{DIM} Zipf, 1 thread, no schedule", samples, name, unit="M rows/s", scale=MIDS
        )
    run.settle(samples)


def unique_rows(numbers: Array, rows: int) -> Array:
    """Returns the batches with each duplicate replaced by some other row: index_copy_ does not order duplicates."""
    rng = np.random.default_rng(4)
    result = np.empty_like(numbers)
    for batch, into in zip(numbers, result, strict=True):
        distinct = np.unique(batch)
        others = np.setdiff1d(rng.integers(0, rows, 2 * len(batch)), distinct)
        into[:] = rng.permutation(np.concatenate([distinct, rng.permutation(others)])[: len(batch)])
    return result


if __name__ == "__main__":
    script("update")
