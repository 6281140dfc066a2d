"""Claims: nothing is promised; how fast two snapshots are compared, and files searched for rows, is written down.

Both read every byte, as whoever checks digests does, so SHA-256 of the same bytes is the measure beside them. Of the
rows of a table every second one differs. A file is searched as `emberline forget` searches it, for a thousand rows and
ids: where needles begin anywhere (`bytes`), and in a page file, where rows lie at multiples of four (`pages`).

    python -m benchmarks.snapshot_reads            # 4 M rows of 32 values: about two minutes, 1.1 GB of memory
    python -m benchmarks.snapshot_reads --quick
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from emberline.difference.tables import compared_tables
from storage.checkpoint import Shard
from storage.checkpoint.row_streams import NO_IDS, RowStream
from storage.forgetting import Needles
from storage.specs import TableSpec

DIM = 32
ROWS, QUICK_ROWS = 4_000_000, 200_000
NEEDLES = 1_000
_BLOCK_ROWS = 250_000
_PIECE_BYTES = 4 << 20
_MAX_S = 60.0


def measure(run: Run) -> None:
    """Measures three figures."""
    rows = run.size(ROWS, QUICK_ROWS)
    before = np.random.default_rng(0).standard_normal((rows, DIM), dtype=np.float32)
    after = before.copy()
    after[::2] += 0.25
    size = before.nbytes + after.nbytes

    def compared(turn: int) -> float:
        began = time.perf_counter()
        found, _ = compared_tables("table", _stream(before), _stream(after), NO_IDS, 5)
        seconds = time.perf_counter() - began
        if found.changed != (rows + 1) // 2:
            raise AssertionError(f"{found.changed:,} rows are said to differ, of {rows:,} every second one does")
        return size / seconds

    samples = run.interleave(
        {"ours": compared, "SHA-256 of both": lambda turn: size / _hashing((before, after))}, max_s=_MAX_S
    )
    claim = f"two snapshots of {rows:,} rows of {DIM} values compared, every second row differs"
    run.report.compare(claim, samples, "SHA-256 of both", unit="MB/s", scale=1e-6)
    run.settle(samples)
    path = run.work / "file"
    before.tofile(path)
    needles = _needles(before)
    for place, step in (("bytes", 1), ("pages", 4)):
        if run.is_late(f"the search of {place}"):
            return

        def searched(turn: int, step: int = step) -> float:
            began = time.perf_counter()
            found = needles.search(path, step=step)
            seconds = time.perf_counter() - began
            if sum(found.values()) != NEEDLES:
                raise AssertionError(f"{found} was found of {NEEDLES:,} rows")
            return before.nbytes / seconds

        samples = run.interleave(
            {"ours": searched, "SHA-256 of the file": lambda turn: before.nbytes / _hashing_file(path)}, max_s=_MAX_S
        )
        claim = f"a file of {before.nbytes / 1e6:,.0f} MB searched for {NEEDLES:,} rows, {place}"
        run.report.compare(claim, samples, "SHA-256 of the file", unit="MB/s", scale=1e-6)
        run.settle(samples)


def _stream(rows: np.ndarray) -> RowStream:
    spec = TableSpec("table", DIM, "fp32", len(rows))
    uses = np.zeros(min(len(rows), _BLOCK_ROWS), np.uint8)

    def read() -> Iterator[Shard]:
        for start in range(0, len(rows), _BLOCK_ROWS):
            part = rows[start : start + _BLOCK_ROWS]
            yield Shard(np.arange(start, start + len(part)), part, uses[: len(part)])

    return RowStream(spec, read)


def _needles(rows: np.ndarray) -> Needles:
    found = Needles()
    for place in np.linspace(0, len(rows) - 1, NEEDLES).astype(int).tolist():
        if not found.add(rows[place].tobytes(), "row"):
            raise AssertionError(f"row {place} is no needle")
    return found


def _hashing(arrays: tuple[np.ndarray, ...]) -> float:
    began = time.perf_counter()
    for array in arrays:
        hashlib.sha256(array.data).digest()
    return time.perf_counter() - began


def _hashing_file(path: Path) -> float:
    began, digest = time.perf_counter(), hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return time.perf_counter() - began


if __name__ == "__main__":
    script("snapshot_reads")
