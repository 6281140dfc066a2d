"""`emberline plan`: predicts the effect of more or less memory on a model, beside what is measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.server_call import IDENTITY, call_server, model_path, timeout_option
from emberline.cli.sizes import BYTES
from emberline.fitted_table import FittedTable, wrapping
from storage.byte_sizes import human_bytes
from storage.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from storage.tiers.planning.forecast import StoreForecast
    from storage.tiers.planning.plan import Plan, PlanRow

_VERSION_IDS = 13_312


@click.command(
    cls=Command,
    name="plan",
    epilog="""\b
Examples:
  emberline plan movielens --url http://127.0.0.1:8000     by the traffic that a running server sees
  emberline plan build/models/movielens/1                  by the use counts of a published version
  emberline plan build/models/movielens/1 --target-ms 5 --ids 13312
  emberline plan movielens --url http://127.0.0.1:8000 --dram-bytes 1GiB --dram-bytes 4GiB --json""",
)
@click.argument("target", metavar="MODEL|VERSION")
@click.option("--url", help="The HTTP address of a running server; without it, the folder of a published version.")
@IDENTITY
@click.option("--dram-bytes", "budgets", type=BYTES, multiple=True, help="A budget to look at; default: a range.")
@click.option("--target-ms", type=click.FloatRange(0, min_open=True), help="Find the smallest budget for this time.")
@click.option(
    "--ids",
    type=click.IntRange(1, 100_000_000),
    help="Ids of one lookup; default: the running model's mean, for a version 13312.",
)
@click.option(
    "--scratch",
    type=LocalPath(file_okay=False),
    help="Folder on the disk to measure, for a version; default: where stores are kept.",
)
@JSON
@timeout_option(30.0)
def command(
    target: str,
    url: str | None,
    budgets: tuple[int, ...],
    target_ms: float | None,
    ids: int | None,
    scratch: Path | None,
    as_json: bool,
    timeout: float,
) -> None:
    """Say what hit rate and lookup time other DRAM budgets would give.

    From a running model: by the miss-ratio curve of its own traffic and by the times of its own lookups; beside the
    prediction for the present budget stands what was measured. A running model without a budget samples no traffic: its
    hit rates are those of the use counts that came with its rows. From a published version: by the use counts that the
    trainer saw, and by times measured now with rows of this size, on this machine and its disk. Other traffic of the
    same kind is expected to lie between the two numbers in brackets.
    """
    from storage.tiers.planning.plan import make_plan

    known = _of_version(Path(target), ids or _VERSION_IDS, scratch) if url is None else _of_server(target, url, timeout)
    ids = ids or round(known.measured.ids) or _VERSION_IDS
    plan = make_plan(known, ids=ids, budgets=budgets, target_ms=target_ms)
    if as_json:
        print_json(_json(target, plan, known))
    else:
        _show(target, plan, known)


def _of_server(model: str, url: str, timeout: float) -> StoreForecast:
    from storage.tiers.budget_report import read_report

    state, _ = call_server(url, model_path(model, "budget"), timeout)
    if not state["stores"]:
        raise Unavailable(f"{model} is not loaded, so nothing is known of its rows; `emberline load {model}` loads it")
    return read_report(state["stores"][0])


def _of_version(path: Path, ids: int, scratch: Path | None) -> StoreForecast:
    from serving.config import stores_dir
    from storage import open_version
    from storage.tiers.measure_costs import measure_costs
    from storage.tiers.planning.version_forecast import version_forecast

    version = open_version(path)
    largest = max(version.tables, key=lambda spec: spec.rows * spec.row_bytes, default=None)
    if largest is None:
        raise InvalidInput(f"{path} has no tables")
    features = max(1, len(version.spec.ids_features))
    return version_forecast(version, measure_costs(largest, scratch or stores_dir(), ids, features))


def _show(target: str, plan: Plan, known: StoreForecast) -> None:
    console = table_console()
    measured = known.measured
    console.print(f"{target}: all rows take {human_bytes(plan.whole_bytes)} of DRAM; lookups of {plan.ids:,} ids")
    names = (
        "DRAM",
        "of all rows",
        wrapping("hit rate"),
        wrapping("ms a lookup"),
        "measured hit rate",
        wrapping("measured ms"),
    )
    table = FittedTable(*names, wrapping(""))
    for row in plan.rows:
        seen = row is plan.now and measured.lookups > 0
        table.add_row(
            human_bytes(row.dram_bytes),
            f"{row.share:.1%}",
            f"{row.hit_rate:.1%} ({row.hit_low:.1%} to {row.hit_high:.1%})",
            _ms(row),
            f"{measured.hit_rate:.2%}" if seen else "",
            f"{measured.ms:.3f} ({measured.ids:,.0f} ids)" if seen else "",
            row.note,
        )
    console.print(table)
    for line in _remarks(plan, known):
        console.print(f"- {line}")
    if plan.now is not None and plan.twice is not None:
        console.print(f"twice the memory: {_change(plan.now, plan.twice)}")
    if plan.target_ms is not None:
        if plan.smallest is None:
            console.print(f"{plan.target_ms:g} ms: not even with all rows in DRAM")
        else:
            console.print(
                f"{plan.target_ms:g} ms: from {human_bytes(plan.smallest.dram_bytes)} "
                f"({plan.smallest.dram_bytes} bytes) on, hit rate {plan.smallest.hit_rate:.2%}"
            )


def _ms(row: PlanRow) -> str:
    if row.lookup_ms is None or row.ms_low is None or row.ms_high is None:
        return "cannot be told"
    return f"{row.lookup_ms:.3f} ({row.ms_low:.3f} to {row.ms_high:.3f})"


def _remarks(plan: Plan, known: StoreForecast) -> list[str]:
    """Returns the remarks that qualify the numbers."""
    found: list[str] = []
    if known.source == "published":
        found.append(
            "hit rates are those of requests that ask for ids as the training data did; other requests get less. A "
            "model with a budget samples its own requests (`emberline plan MODEL --url ...`)"
        )
    if plan.doubt:
        found.append(f"times of other budgets: {plan.doubt}")
    return found


def _change(now: PlanRow, then: PlanRow) -> str:
    text = f"{human_bytes(then.dram_bytes)}, hit rate {now.hit_rate:.2%} -> {then.hit_rate:.2%}"
    if now.lookup_ms is not None and then.lookup_ms is not None:
        text += f", {now.lookup_ms:.3f} -> {then.lookup_ms:.3f} ms a lookup"
    return text


def _json(target: str, plan: Plan, known: StoreForecast) -> dict[str, Any]:
    return {
        "target": target,
        **asdict(plan),
        "measured": asdict(known.measured) if known.measured.lookups else None,
        "costs": None if known.costs is None else asdict(known.costs),
    }
