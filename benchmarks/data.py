"""Claims: rows of Parquet become tensors nearly as fast as pyarrow reads them, and only columns in use are read.

The rows are those of `emberline data wide`: 40 inputs (16 of text, 8 uint64, 8 int64, 8 float32 with nulls) and a
label. Ours reads, runs the feature engine and cuts batches of tensors, without a training step. pyarrow reads the same
columns into one table. One thread each, unless two are said: one that reads and one that makes features, as in a
training.

    python -m benchmarks.data            # about five minutes
    python -m benchmarks.data --quick
    python -m benchmarks.data --only columns
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.data_pipeline import pipeline, rate
from storage.data import DataRows, Wanted
from trainer.config import TrainConfig, load_config
from trainer.data import TOGETHER_ROWS, BatchMaker, Prefetcher, RowStream
from trainer.datasets import write_wide
from trainer.row_sources import training_rows

PARTS = ("batches", "columns", "pipeline")
ROWS, QUICK_ROWS = 1_000_000, 60_000
#: Of the speed of pyarrow.read_table, by rows of a batch.
OF_READ_TABLE = {512: 0.8, 2048: 0.9}
OF_ONE_THREAD = 1.8
#: Three of the 41 columns: one of each kind.
FEW = ("word_03", "key_02", "measure_05")
_SAMPLES = 1e-6
_MAX_S = 120.0


def measure(run: Run) -> None:
    """Measures batches of tensors, what a few columns cost, and a whole training."""
    wide = load_config(Path("trainer/configs/wide40.yaml"))
    write_wide(run.work / "wide", rows=run.size(ROWS, QUICK_ROWS))
    path = run.work / "wide" / "train.parquet"
    rows = training_rows(wide, path, learns=True)
    config = wide.with_column_types(rows.column_types)
    if run.wants("batches"):
        for size in OF_READ_TABLE:
            of_batches(run, path, config, rows, size)
    if run.wants("columns"):
        of_columns(run, path, config)
    if run.wants("pipeline") and not run.is_late("pipeline"):
        pipeline(run, path, config, rows)


def of_batches(run: Run, path: Path, config: TrainConfig, rows: DataRows, size: int) -> None:
    """Compares batches of tensors with pyarrow's table, with its batches as numpy, and two threads with one."""
    maker, stream = BatchMaker(config.spec, config.targets), RowStream(rows, size)
    together = max(1, TOGETHER_ROWS // size)
    names = rows.schema.names

    def one_thread() -> int:
        tables = stream.cut(stream.windows(0), together)
        return sum(batch.rows for table in tables for batch in maker.batches(table, size))

    def two_threads() -> int:
        with Prefetcher(stream.windows(0), depth=1) as windows:
            return sum(batch.rows for table in stream.cut(windows, together) for batch in maker.batches(table, size))

    def read_table() -> int:
        return int(pq.read_table(path, columns=names, use_threads=False).num_rows)

    def to_numpy() -> int:
        seen = 0
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(size, columns=names, use_threads=False):
                for column in batch.columns:
                    column.to_numpy(zero_copy_only=False)
                seen += batch.num_rows
        return seen

    contestants = {
        "ours": rate(one_thread, rows.rows),
        "two threads": rate(two_threads, rows.rows),
        "pyarrow.read_table": rate(read_table, rows.rows),
        "iter_batches to numpy": rate(to_numpy, rows.rows),
    }
    samples = run.interleave(contestants, max_s=_MAX_S, quiet_cores=0.5)
    claim = f"Parquet to tensors, batches of {size:,}"
    targets = {"pyarrow.read_table": OF_READ_TABLE[size], "iter_batches to numpy": None}
    for other, target in targets.items():
        run.report.compare(claim, samples, other, unit="M rows/s", scale=_SAMPLES, target=target)
    run.report.compare(
        f"{claim}, two threads",
        samples,
        "ours",
        ours="two threads",
        unit="M rows/s",
        scale=_SAMPLES,
        target=OF_ONE_THREAD,
    )
    run.settle(samples)


def of_columns(run: Run, path: Path, config: TrainConfig) -> None:
    """Compares the bytes and the time of three columns with those of all, and with what the file has of them."""
    inputs = {entry.source: entry for entry in config.inputs}
    few = DataRows.open(path, Wanted([inputs[name] for name in FEW], learns=True))
    everything = DataRows.open(path, Wanted(list(inputs.values()), learns=True))
    size = _column_bytes(path)
    for name, rows, columns in (("3", few, list(FEW)), ("40", everything, list(inputs))):
        wanted = sum(size[column] for column in columns)
        before = _bytes_read()
        for block in rows.blocks:
            block.read(rows.schema)
        read = _bytes_read() - before
        run.report.pairs(
            f"bytes read for {name} of 41 columns",
            [read / 1e6],
            [wanted / 1e6],
            "their bytes in the file",
            unit="MB",
            less_is_better=True,
            target=0.9,
        )

    def reading(rows: DataRows) -> Callable[[], int]:
        return lambda: sum(block.read(rows.schema).num_rows for block in rows.blocks)

    contestants = {"ours": rate(reading(few), few.rows), "all 40": rate(reading(everything), few.rows)}
    samples = run.interleave(contestants, max_s=_MAX_S / 4, quiet_cores=0.5)
    share = sum(size[name] for name in inputs) / sum(size[name] for name in FEW)
    run.report.compare(
        "reading 3 of 41 columns",
        samples,
        "all 40",
        unit="M rows/s",
        scale=_SAMPLES,
        note=f"all have {share:.1f} times their bytes",
    )
    run.settle(samples)


def _column_bytes(path: Path) -> dict[str, int]:
    """Returns the bytes that each column has in the file, compressed."""
    found: dict[str, int] = {}
    with pq.ParquetFile(path) as file:
        for group in range(file.metadata.num_row_groups):
            for place in range(file.metadata.num_columns):
                chunk = file.metadata.row_group(group).column(place)
                found[chunk.path_in_schema] = found.get(chunk.path_in_schema, 0) + chunk.total_compressed_size
    return found


def _bytes_read() -> int:
    """Returns the bytes that this process has asked the kernel for."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


if __name__ == "__main__":
    script("data")
