"""`emberline shadow`: scores copies of live requests on another snapshot or version, which answers nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.names import MODEL, complete_snapshots
from emberline.cli.server_call import URL, call_server, model_path, timeout_option
from emberline.cli.snapshots import shadow_line, state_line
from emberline.fitted_table import FittedTable, wrapping

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")


class Duration(click.ParamType[float]):
    """A length of time such as 30m; seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns seconds."""
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(str(value))
        if found is None or float(found[1]) <= 0:
            self.fail(f"{value!r} is no length of time; expected a number and s, m, h or d, such as 30m", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command(
    cls=Command,
    name="shadow",
    epilog="""\b
Examples:
  emberline shadow movielens 1.18 --share 0.1               a delta or snapshot
  emberline shadow movielens 2 --share 0.1 --for 30m        a version, which follows its own deltas
  emberline shadow movielens                                 show what was compared, with a verdict
  emberline shadow movielens --promote                       serve it to all requests
  emberline shadow movielens --stop                          stop it""",
)
@MODEL
@click.argument("to", default="", shell_complete=complete_snapshots)
@click.option(
    "--share",
    "--fraction",
    "share",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the requests that it scores too, above 0 and at most 1.",
)
@click.option(
    "--top-k",
    type=click.IntRange(1, 100_000),
    default=10,
    help="Rows of a request whose overlap is compared.",
)
@click.option("--for", "for_s", type=Duration(), help="How long, such as 30m or 2h; default: until it is stopped.")
@click.option("--promote", is_flag=True, help="The shadow becomes the served snapshot.")
@click.option("--stop", "--off", "stop", is_flag=True, help="It scores no more, and what was loaded for it is freed.")
@JSON
@URL
@timeout_option(30.0)
def command(
    model: str,
    to: str,
    share: float | None,
    top_k: int,
    for_s: float | None,
    promote: bool,
    stop: bool,
    as_json: bool,
    url: str,
    timeout: float,
) -> None:
    """Score copies of a share of MODEL's requests on the snapshot or version TO, and compare. TO answers nobody.

    It uses spare cycles: when the server is busy, copies are dropped and counted. Without TO, it shows what was
    compared so far, with a verdict. Bounds of the verdict are options of the model (`shadow_max_shift` and others).
    """
    if bool(to) + promote + stop > 1:
        raise click.UsageError("give one of TO, --promote and --stop")
    if (share is not None) != bool(to):
        raise click.UsageError("TO and --share go together, such as: emberline shadow movielens 1.18 --share 0.1")
    if for_s is not None and not to:
        raise click.UsageError("--for goes with TO and --share only")
    path = model_path(model, "shadow")
    if promote or stop:
        state, _ = call_server(url, path, timeout, {"promote": True} if promote else {"stop": True})
    elif to:
        content = {"to": to, "share": share, "top_k": top_k, **({} if for_s is None else {"for_s": for_s})}
        state, _ = call_server(url, path, timeout, content)
    else:
        state, _ = call_server(url, model_path(model, "snapshots"), timeout)
    if as_json:
        print_json(state)
        return
    click.echo(state_line(state))
    shadow = state["shadow"]
    if shadow is not None and "ended" not in shadow:
        _show(shadow)
    elif not (promote or stop or to):
        click.echo(shadow_line(shadow) or f"{model}: no shadow")


def _show(shadow: Mapping[str, Any]) -> None:
    console = table_console()
    console.print(shadow_line(shadow))
    names = ("rows", "mean shift", "absolute", "99%", "calibration", "top overlap", "rank corr.")
    table = FittedTable(wrapping("output"), *names)
    for each in shadow["outputs"]:
        numbers = ("mean_shift", "mean_absolute_shift", "p99_absolute_shift", "calibration", "overlap")
        shown = [_number(each[name]) for name in (*numbers, "rank_correlation")]
        table.add_row(each["output"], f"{each['rows']:,}", *shown)
    if shadow["outputs"]:
        console.print(table)
    if shadow["shadow_p50_ms"] is not None:
        console.print(
            f"main arm: {shadow['main_p50_ms']:.2f} ms in the median, {shadow['main_p99_ms']:.2f} ms at 99%, waiting "
            f"included; shadow: {shadow['shadow_p50_ms']:.2f} ms, {shadow['shadow_p99_ms']:.2f} ms of computing, "
            f"{_number(shadow['slowdown'])} times the main arm's"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
