"""Prints what fleets of some sizes ask of an object store, what that costs, and what is used up at which size.

    python -m benchmarks.fleet_costs
    python -m benchmarks.fleet_costs --replicas 3,100,1000 --rows 1e9 --row-bytes 256 --deltas-per-hour 60
    python -m benchmarks.fleet_costs --replicas 1000 --poll 5 --cumulative-every 64 --version-every 0

Nothing is measured here: see `fleet_model`. Prices are list prices from memory; enter your own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import click

from benchmarks.fleet_model import LEASE_PER_S, READS, ROUND_S, Load, Prices, costs
from emberline.cli.command import Command
from emberline.cli.frame import run_command

NAME = "python -m benchmarks.fleet_costs"
#: GETs a second that S3 promises under one prefix, which a model's head.json is in.
STORE_GETS_S = 5_500


def table(loads: Sequence[Load], prices: Prices) -> list[str]:
    """Returns the lines of a Markdown table with a column for each load."""
    found = [costs(load, prices) for load in loads]

    def line(what: str, *values: str) -> str:
        return f"| {what} | {' | '.join(values)} |"

    def each(what: str, of: Any) -> str:
        return line(what, *(of(one) for one in found))

    return [
        line("replicas", *(f"{load.replicas:,}" for load in loads)),
        line("---", *("---:" for _ in loads)),
        each("requests a second, nothing published", lambda c: f"{c.rate_idle:,.0f}"),
        each("requests a second while all wait, at most", lambda c: f"{c.rate_waiting:,.0f}"),
        each("GETs of a delta", lambda c: f"{c.gets_delta:,.0f}"),
        each("PUTs and LISTs of a delta", lambda c: f"{c.puts_delta + c.lists_delta:,.0f}"),
        each("the holder reads what all say in", lambda c: f"{c.holder_s:.2f} s"),
        each("a delta is served by all after", lambda c: f"{c.served_s:.1f} s"),
        each("head.json, read twice a delta by each", lambda c: size(c.head_bytes)),
        each("a delta; the mean with cumulative ones", lambda c: f"{size(c.delta_bytes)}; {size(c.mean_delta_bytes)}"),
        each("from the store for deltas", lambda c: f"{size(c.deltas_h / 3600)}/s"),
        each("from the store for versions", lambda c: f"{size(c.versions_h / 3600)}/s"),
        each("a version; one replica has it after", lambda c: f"{size(c.version_bytes)}; {duration(c.version_s)}"),
        each("SSD of a replica, at most", lambda c: size(c.replica_ssd_bytes)),
        each("directory and filters in DRAM", lambda c: size(c.index_bytes)),
        each("requests, $ a month", lambda c: f"{c.requests_month:,.0f}"),
        each("objects, $ a month", lambda c: f"{c.store_month:,.0f}"),
        each("reading them, $ a month", lambda c: f"{c.read_month:,.0f}"),
        each("SSD as volumes, $ a month", lambda c: f"{c.ssd_month:,.0f}"),
    ]


def limits(load: Load) -> list[str]:
    """Returns the lines of a Markdown table: what is used up at which size, all else as it is in `load`."""
    one, waiting = costs(replace(load, replicas=1)), 1 / (ROUND_S + load.latency_ms / 1000) + LEASE_PER_S
    store = load.store_gbit * 1e9 / 8
    replica_s = load.replica_gbit * 1e9 / 8
    reads = math.floor(READS * (load.poll_s * 1000 / max(load.latency_ms, 1e-9) - 1))

    def replicas(most: float, needed: float) -> str:
        return f"{most / needed:,.0f} replicas" if needed > 0 else "no size"

    def rows(most: float, needed: float) -> str:
        return f"{size(load.rows * load.row_bytes * most / needed)} of rows" if needed > 0 else "no size"

    found = [
        ("the holder's reads take as long as a look", f"{max(reads, 0):,} replicas"),
        (f"{STORE_GETS_S:,} GETs a second, while all wait", replicas(STORE_GETS_S, waiting)),
        ("the same, while nothing is published", replicas(STORE_GETS_S * 3600, one.gets_idle_h)),
        (f"versions fill {load.store_gbit:g} Gbit/s of the store", replicas(store * 3600, one.versions_h)),
        ("deltas fill it", replicas(store * 3600, one.deltas_h)),
        (f"versions fill {load.replica_gbit:g} Gbit/s of a replica", rows(replica_s * 3600, one.versions_h)),
        (f"{load.disk_tb:g} TB of SSD of a replica", rows(load.disk_tb * 1e12, one.replica_ssd_bytes)),
        (f"{load.index_gb:g} GB of DRAM for directory and filters", rows(load.index_gb * 1e9, one.index_bytes)),
    ]
    return ["| used up | at |", "| --- | --- |", *(f"| {what} | {at} |" for what, at in found)]


def size(count: float) -> str:
    """Returns bytes in words, in powers of ten: 26.5 MB."""
    unit, *larger = ("B", "kB", "MB", "GB", "TB", "PB")
    while count >= 999.5 and larger:
        count, unit = count / 1000, larger.pop(0)
    return f"{count:.3g} {unit}"


def duration(seconds: float) -> str:
    """Returns seconds in words, in the unit that suits."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _options(function: Any) -> Any:
    for model in (Prices, Load):
        for field in reversed(fields(model)):
            if field.name == "replicas":
                continue
            flag = "--" + field.name.removesuffix("_s").replace("_", "-")
            kind = int if isinstance(field.default, int) and field.name.endswith("every") else float
            function = click.option(flag, field.name, type=kind, default=field.default, show_default=True)(function)
    return function


@click.command(cls=Command, name=NAME)
@click.option("--replicas", default="3,100,1000", show_default=True, help="One column for each, such as 3,100.")
@_options
def command(replicas: str, **values: Any) -> None:
    """Print what fleets of some sizes ask of an object store, and what that costs.

    \b
    Example:
      python -m benchmarks.fleet_costs --replicas 10,1000 --rows 4e9 --row-bytes 68
    """
    prices = Prices(**{field.name: values.pop(field.name) for field in fields(Prices)})
    try:
        counts = [int(part) for part in replicas.replace("_", "").split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{replicas!r} is no list of numbers such as 3,100,1000", param_hint="--replicas"
        ) from None
    try:
        loads = [replace(Load(**values), replicas=count) for count in counts]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo("\n".join([*table(loads, prices), "", *limits(loads[0])]))


if __name__ == "__main__":
    run_command(command, sys.argv[1:], NAME)
