"""Prints how a training is computed to scale with its ranks, from measured costs of stages and the sizes of messages.

    python -m benchmarks.rank_costs
    python -m benchmarks.rank_costs --ranks 2,16,64 --batch 65536 --gbit 25 --latency-ms 0.05 --wire bf16
    python -m benchmarks.rank_costs --weak --batch 4096

Nothing is measured here: `python -m benchmarks ranks` measures two ranks. One rank has one core of a host of its own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import click
import numpy as np

from benchmarks.rank_world import IDS, TABLES
from emberline.cli.command import Command
from emberline.cli.frame import run_command
from loadtest.popularity import zipf

NAME = "python -m benchmarks.rank_costs"
#: Exchanges that a step waits for before it has its rows: how many ids come, ids, rows. Those behind travel at once.
BEFORE_ROWS = 3


@dataclass(frozen=True)
class Training:
    """A DLRM of benchmarks.rank_world, its costs on one core, and the network.

    fixed_ms, sample_us: a step of one process, by a fit of batches of 2,048 and 4,096 rows; reading is among the
    latter. read_us: of it, reading; each rank reads a share. send_us: what it costs that a row which was read travels
    to its rank: sorting out, messages, putting in order. place_us: what each rank does for every row of all, to know
    where it belongs. id_us: writing, copying and reading of messages for each different id.
    """

    #: Rows of a batch, those of all ranks; with `weak`, those of each.
    batch: int = 65_536
    weak: bool = False
    dim: int = 16
    fixed_ms: float = 11.0
    sample_us: float = 6.6
    read_us: float = 0.5
    send_us: float = 0.65
    place_us: float = 0.02
    id_us: float = 0.15
    dense_kb: float = 110.0
    row_bytes: float = 265.0
    gbit: float = 10.0
    latency_ms: float = 0.1
    #: Steps of a rank differ by so much, as a standard deviation by the mean; all wait for the slowest.
    unevenness: float = 0.03
    #: Bytes of a value on its way.
    value_bytes: int = 4


@dataclass(frozen=True)
class Step:
    """A step of one rank."""

    work_ms: float
    #: Of the work, what reading takes.
    reading_ms: float
    network_ms: float
    sent_bytes: float
    samples_s: float

    @property
    def ms(self) -> float:
        """The whole step."""
        return self.work_ms + self.network_ms


def step(training: Training, ranks: int) -> Step:
    """Returns the step of one of so many ranks."""
    t = training
    whole = t.batch * ranks if t.weak else t.batch
    own = whole / ranks
    others = (ranks - 1) / ranks
    ids = different(round(own)) * others
    reading = own * t.read_us / 1000
    if ranks > 1:
        reading += (own * t.send_us + whole * t.place_us) / 1000
    work = t.fixed_ms + (own * (t.sample_us - t.read_us) + ids * t.id_us) / 1000
    work = (work + reading) * (1 + t.unevenness * math.sqrt(2 * math.log(ranks)))
    rows = ids * t.dim * t.value_bytes
    dense = 2 * others * t.dense_kb * 1000 * t.value_bytes / 4
    if ranks == 1:
        return Step(work, reading, 0.0, 0.0, whole / work * 1000)
    ms_byte = 8 / (t.gbit * 1e6)
    # The gradients of rows and those of the dense weights share the link; a sum goes around twice.
    behind = max(t.latency_ms, 2 * (ranks - 1) * t.latency_ms) + (rows + dense) * ms_byte
    network = BEFORE_ROWS * t.latency_ms + (9 * ids + rows) * ms_byte + behind
    data = own * others * t.row_bytes  # it travels ahead, while ranks work
    return Step(work, reading, network, 9 * ids + 2 * rows + dense + data, whole / (work + network) * 1000)


@cache
def different(rows: int) -> float:
    """Returns the different ids of so many rows, over all tables."""
    return float(TABLES * (1 - np.exp(rows * np.log1p(-zipf(IDS).weights()))).sum())


def table(training: Training, ranks: Sequence[int]) -> list[str]:
    """Returns the lines of a Markdown table with a line for each number of ranks."""
    one = step(training, 1)
    lines = [
        "| ranks | a step | own work | of it reading | network | sent by a rank | samples/s | speed-up | efficiency |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for count in ranks:
        found = step(training, count)
        times = found.samples_s / one.samples_s
        lines.append(
            f"| {count} | {found.ms:.1f} ms | {found.work_ms:.1f} ms | {found.reading_ms:.1f} ms | "
            f"{found.network_ms:.1f} ms | {found.sent_bytes / 1e6:.2f} MB | {found.samples_s / 1000:,.0f} k | "
            f"{times:.1f} | {times / count:.0%} |"
        )
    return lines


def _options(function: Any) -> Any:
    for field in reversed(fields(Training)):
        if field.name in ("weak", "value_bytes"):
            continue
        flag, kind = "--" + field.name.replace("_", "-"), int if field.name in ("batch", "dim") else float
        function = click.option(flag, type=kind, default=field.default, show_default=True)(function)
    return function


@click.command(cls=Command, name=NAME)
@click.option("--ranks", default="1,2,4,8,16,32,64", show_default=True, help="One line for each.")
@click.option("--weak", is_flag=True, help="--batch rows for each rank, and not for all together.")
@click.option("--wire", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True)
@_options
def command(ranks: str, weak: bool, wire: str, **given: Any) -> None:
    """Print what a training of 1 to 64 ranks is computed to reach.

    \b
    Example:
      python -m benchmarks.rank_costs --weak --batch 4096
    """
    try:
        counts = [int(each) for each in ranks.split(",")]
    except ValueError:
        raise click.BadParameter(f"{ranks!r}: expected numbers such as 1,2,4", param_hint="--ranks") from None
    if min(counts) < 1 or min(given.values()) < 0 or not (given["gbit"] > 0 and given["batch"] >= max(counts)):
        raise click.UsageError("Expected ranks of 1 or more, a row for each of them, and no number below 0.")
    training = Training(weak=weak, value_bytes=4 if wire == "fp32" else 2, **given)
    click.echo("\n".join(table(training, counts)))


if __name__ == "__main__":
    run_command(command, sys.argv[1:], NAME)
