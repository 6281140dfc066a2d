"""Measures what reading costs ranks: each all rows, or a share that it sends on. Nothing is trained.

Started by benchmarks.ranks. Processor time is that of all threads of a process, those of gloo too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.catalog import Run
from benchmarks.rank_world import BATCH, Task, write_clicks

#: Ranks that are measured.
RANKS = (1, 2, 4)
_ROWS, _QUICK_ROWS = 524_288, 131_072
#: CSV takes long to write.
_OF_TEXT = 2
_REPEATS = 3
_BLOCK_ROWS = 32_768


def serve_reading(task: Task, pipe: Connection) -> None:
    """Reads an epoch whenever the pipe says so, and answers with the microseconds of the processor for each row of it,
    and the bytes sent.
    """
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1")
    os.environ.update(RANK=str(task.rank), WORLD_SIZE=str(task.size), LOCAL_WORLD_SIZE=str(task.size))
    os.environ.update(MASTER_PORT=str(task.port))
    from storage.data import DataOptions, DataRows
    from trainer.data import Dealer, Prefetcher, RowStream, SharedReading, Split
    from trainer.rank_group import RankGroup
    from trainer.ranks import Traffic, join_ranks

    with join_ranks() as ranks:
        rows = DataRows.open(task.data, None, DataOptions(block_rows=_BLOCK_ROWS))
        stream = RowStream(rows, BATCH, shuffle_rows=4 * _BLOCK_ROWS, split=Split(ranks.rank, ranks.size))
        traffic, dealer = Traffic(), Dealer(ranks.size)
        shares = task.kind == "shares" and ranks.are_several
        group = RankGroup(ranks, traffic) if shares else None

        def epoch(number: int) -> Iterator[Any]:
            if group is None:
                yield from stream.epoch(number)
                return
            reading = SharedReading(stream, number, 0, group, dealer, lookahead=4)
            with reading, Prefetcher(reading.tables(), depth=reading.rounds) as read:
                yield from reading.permitting(stream.cut(read))

        pipe.send(None)
        while (number := pipe.recv()) is not None:
            ranks.gather(None)
            used, sent = time.process_time(), traffic.sent.get("data", 0)
            for _ in epoch(number):
                pass
            spent = time.process_time() - used
            pipe.send((1e6 * spent / rows.rows, (traffic.sent.get("data", 0) - sent) / rows.rows))


def reading(run: Run, start: Callable[..., Any]) -> None:
    """Compares the processor time of a rank for a row of the data, the mean of all. start: starts ranks of a kind."""
    clicks = run.work / "reading.parquet"
    write_clicks(clicks, run.size(_ROWS, _QUICK_ROWS))
    text = run.work / "reading.tsv"
    table = pq.read_table(clicks)
    options = pyarrow.csv.WriteOptions(delimiter="\t")
    pyarrow.csv.write_csv(table.slice(0, table.num_rows // _OF_TEXT), text, options)
    for path, title in ((clicks, "Parquet"), (text, "TSV")):
        for size in RANKS:
            if not run.is_late(f"reading {title}, {size} ranks"):
                _compare(run, path, title, size, start)


def _compare(run: Run, path: Path, title: str, size: int, start: Callable[..., Any]) -> None:
    kinds = ("shares", "all") if size > 1 else ("all",)
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    bytes_sent = 0.0
    groups = {kind: start(kind, path, size) for kind in kinds}
    try:
        for group in groups.values():
            group.ready()
        for turn in range(_REPEATS + 1):  # the first one reads from the disk
            for kind, group in groups.items():
                found = group.ask(turn)
                if turn:
                    figures[kind].append(sum(each for each, _ in found) / size)
                    bytes_sent = max(bytes_sent, sum(sent for _, sent in found) / size)
    finally:
        for group in groups.values():
            group.close()
    claim = f"reading {title}, ranks: {size}, processor time of each for a row of the data"
    if size == 1:
        run.report.pairs(claim, figures["all"], figures["all"], "itself", unit="us", less_is_better=True)
        return
    run.report.pairs(
        claim, figures["shares"], figures["all"], "each reads all", unit="us", less_is_better=True,
        note=f"each rank sends {bytes_sent:.0f} B for a row of the data",
    )  # fmt: skip
