"""`emberline loadtest`: sends load to a running server and reports throughput and latency."""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from emberline.cli.command import Command, DataArgument, LocalPath
from emberline.cli.console import json_file
from emberline.cli.names import complete_models
from emberline.cli.server_call import URL
from emberline.cli.target import check_folder
from storage.errors import ConfigError

KINDS = ("http_binary", "http_json", "grpc")
_FIRST_RATE = 100.0
# Options that say nothing of another load.
_OF_A_SEARCH = ("step", "start_rate")
_OF_OPEN_LOOPS = ("arrivals", "connections")


class Duration(click.ParamType[float]):
    """A length of time: seconds, or a number with s, m or h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns seconds."""
        from loadtest.phases import parse_duration

        try:
            return float(value) if isinstance(value, int | float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    cls=Command,
    name="loadtest",
    epilog="""\b
Examples:
  emberline loadtest --model movielens --data build/movielens/test.parquet
  emberline loadtest --model movielens --data build/movielens/test.parquet --rate 500 --seconds 60
  emberline loadtest --model movielens --data build/movielens/test.parquet --find-p99 10 --hold 5m --html load.html

\b
What is sent, and when:
  --users 4                        closed loop: each user sends its next request when it has the response
  --users 1,4,16                   the same with more and more users, --seconds each
  --rate 500                       open loop: 500 requests a second, whether responses come or not
  --rate 100,200,400               steps of --seconds each
  --rate 100..1000@60s             a ramp over a minute
  --rate 200@30s,1000@5s,200@30s   a spike
  --rate 500@8h                    a soak test
  --find-p99 10                    find the highest rate whose p99 stays under 10 ms

\b
A closed loop shows what some callers get who wait for their responses. It
cannot overload a server: when the server is slow, it sends less. For the
latency that users see at a given traffic, use an open loop: latency counts from
when a request was due, so the time in which it could not be sent is part of it.

\b
Exit codes:
  0  everything was answered, and no condition of --fail-if holds
  1  a request failed or had no answer, a condition holds, no rate was found or held, or the test could not run
  2  wrong usage
  130  interrupted; what was measured is reported""",
)
@click.option("--model", required=True, shell_complete=complete_models, help="Name of the model to ask.")
@click.option(
    "--data",
    type=DataArgument(),
    help="File, folder, pattern or URL of rows with the columns that the model was trained on.",
)
@click.option(
    "--requests",
    type=LocalPath(exists=True, dir_okay=False),
    help="Recorded requests instead of rows, sent in their order: JSON lines of KServe v2 bodies, .npz, .safetensors "
    "or .parquet, as `emberline prove --requests` reads them.",
)
@click.option("--users", help="Closed loop: users, or steps of users such as 1,4,16. Default: 4.")
@click.option("--rate", help="Open loop: requests a second, or a profile of rates (see below).")
@click.option(
    "--find-p99", type=click.FloatRange(0, min_open=True), help="Find the highest rate whose p99 is under MS."
)
@click.option(
    "--hold",
    type=Duration(),
    default=0.0,
    show_default=False,
    help="Hold the rate that was found so long, or the highest that can be.",
)
@click.option("--seconds", type=Duration(), default=10.0, help="Length of each phase that names none.")
@click.option("--step", type=Duration(), default=5.0, help="Length of a measurement of --find-p99.")
@click.option("--start-rate", type=click.FloatRange(1), default=_FIRST_RATE, help="Rate that --find-p99 begins with.")
@click.option(
    "--arrivals",
    type=click.Choice(["equal", "poisson"]),
    default="equal",
    help="Gaps between the requests of an open loop: equal, or random as of users who do not know of each other.",
)
@click.option("--items", type=click.IntRange(1, 100_000), default=32, help="Rows of a request.")
@click.option(
    "--ids",
    help="Draw the ids of the data with another popularity: uniform, zipf, zipf:1.2, or reuse, as ids recur in "
    "production models. Default: as rows are in the data.",
)
@click.option(
    "--drift",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="With --ids: share of the hot ids that become others each minute, such as 0.05.",
)
@click.option("--user-inputs", help="Inputs that are sent with one row, such as user,age: many items of one user.")
@click.option("--distinct", type=click.IntRange(1, 1_000_000), default=2000, help="Different requests to prepare.")
@click.option("--rows", type=click.IntRange(1, 10_000_000), default=100_000, help="Rows of --data to read.")
@click.option("--seed", type=int, default=1, help="The same seed sends the same requests.")
@click.option(
    "--kinds",
    help=f"Kinds of requests, one after the other: {','.join(KINDS)}. Default: all in a closed loop, http_binary "
    "otherwise.",
)
@click.option("--connections", type=click.IntRange(1, 10_000), default=64, help="Connections of an open loop at most.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, help="Processes that share the load.")
@click.option(
    "--generator",
    type=click.Choice(["locust", "h2load", "wrk2", "perf_analyzer"]),
    default="locust",
    help="What sends the load. The others are programs in C and C++, for rates at which locust's own cost would show.",
)
@click.option("--grpc", help="gRPC address. Default: port 8001 of the host of --url.")
@click.option("--metrics", help="The server's metrics page, or none. Default: port 8002 of the host of --url.")
@click.option("--json", "json_path", type=LocalPath(dir_okay=False), help="Write all figures here.")
@click.option("--html", "html_path", type=LocalPath(dir_okay=False), help="Write a report with plots here, one file.")
@click.option(
    "--fail-if",
    multiple=True,
    help="End with 1 if this holds of the figures: p99>10ms, failed>0.1%, rate<500, hit_rate<90%. May be repeated.",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@URL
def command(url: str, model: str, **given: Any) -> None:
    """Send load to a running server, and report requests a second and latency.

    Requests are made of rows of --data, or read from --requests, and prepared before the load begins.
    """
    if importlib.util.find_spec("locust") is None:
        raise ConfigError("loadtest needs locust: pip install 'emberline[loadtest]'")
    plan, connections, kinds, conditions = _checked(given)
    for name in ("json", "html"):
        check_folder(f"--{name}", given[f"{name}_path"])
    if given["generator"] != "locust":
        from loadtest.compiled import check_generator

        for kind in kinds:
            check_generator(given["generator"], kind, plan.phases, plan.searched_s)
    with _ended_in_order():
        results = _run(url, model, given, plan, connections, kinds)
    interrupted = any(run["interrupted"] for run in results.values())
    from emberline.comparison.page import write_page

    if given["json_path"] is not None:
        write_page(given["json_path"], json_file(results))
    if given["html_path"] is not None:
        from emberline.loads.page import to_html

        write_page(given["html_path"], to_html(f"{model} at {url}", results))
    held = [
        f"{kind}: {condition.text}" for kind, run in results.items() for condition in conditions if condition.holds(run)
    ]
    for text in held:
        click.echo(f"failed: {text}", err=True)
    for run in results.values():
        if run["broken"]:
            click.echo(f"failed: {run['broken']}", err=True)
    if interrupted:
        sys.exit(130)
    not_found = any(run["search"] and run["search"]["rate"] is None for run in results.values())
    if held or not_found or any(run["failures"] or run["unanswered"] or run["broken"] for run in results.values()):
        sys.exit(1)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP do what Ctrl-C does: the load ends, and what was measured is reported."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN  # under nohup it stays ignored
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _checked(given: dict[str, Any]) -> tuple[Any, int, list[str], list[Any]]:
    """Returns the plan, the connections, the kinds and the conditions. Raises click.UsageError."""
    from loadtest.conditions import parse_condition
    from loadtest.phases import parse_rates, parse_users
    from loadtest.popularity import parse_popularity
    from loadtest.runner import Plan

    if (given["data"] is None) == (given["requests"] is None):
        raise click.UsageError("give either --data, rows to make requests of, or --requests, recorded requests")
    if sum(given[name] is not None for name in ("users", "rate", "find_p99")) > 1:
        raise click.UsageError("give one of --users, --rate and --find-p99")
    context = click.get_current_context()
    if given["hold"] and given["find_p99"] is None:
        raise click.UsageError("--hold goes with --find-p99; to hold a rate that you know, use --rate RATE@DURATION")
    if given["requests"] is not None and (given["ids"] or given["user_inputs"]):
        raise click.UsageError("--ids and --user-inputs go with --data; recorded requests are sent as they are")
    is_search, is_open = given["find_p99"] is not None, given["rate"] is not None or given["find_p99"] is not None
    for name in _OF_A_SEARCH * (not is_search) + _OF_OPEN_LOOPS * (not is_open):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            where = "--find-p99" if name in _OF_A_SEARCH else "--rate or --find-p99"
            raise click.UsageError(f"--{name.replace('_', '-')} goes with {where}")
    if given["arrivals"] == "poisson" and given["generator"] != "locust":
        raise click.UsageError(f"--arrivals: {given['generator']} sends at equal gaps; use locust for random ones")
    if given["drift"] and given["generator"] != "locust":
        raise click.UsageError(f"--drift: {given['generator']} sends its requests in turn; use locust")
    if given["drift"] and not given["ids"]:
        raise click.UsageError("--drift goes with --ids, such as --ids zipf --drift 0.05")
    name = "rate"
    try:
        phases = [] if given["rate"] is None else parse_rates(given["rate"], given["seconds"])
        name = "users"
        if given["rate"] is None and given["find_p99"] is None:
            phases = parse_users(given["users"] or "4", given["seconds"])
        name = "ids"
        if given["ids"]:
            parse_popularity(given["ids"], 10)
        name = "fail-if"
        conditions = [parse_condition(text) for part in given["fail_if"] for text in part.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--{name}: {error}") from None
    named = given["kinds"].split(",") if given["kinds"] else list(KINDS[:1] if is_open else KINDS)
    kinds = list(dict.fromkeys(each.strip() for each in named))
    for kind in kinds:
        if kind not in KINDS:
            raise click.UsageError(f"--kinds: expected some of {', '.join(KINDS)}, got {kind!r}")
    plan = Plan(
        phases,
        given["find_p99"],
        first_rate=given["start_rate"],
        step_s=given["step"],
        hold_s=given["hold"],
        gaps=given["seed"] if given["arrivals"] == "poisson" else None,
    )
    connections = given["connections"] if is_open else max(phase.users for phase in phases)
    return plan, max(connections, given["processes"]), kinds, conditions


def _run(
    url: str, model: str, given: dict[str, Any], plan: Any, connections: int, kinds: list[str]
) -> dict[str, dict[str, Any]]:
    """Runs each kind, and prints its figures. Returns them by kind."""
    from emberline.cli.load_requests import fetch_page, find_target, from_rows, metrics_url, recorded, send_first
    from emberline.loads import table
    from emberline.loads.progress import progress
    from emberline.loads.results import result_of
    from loadtest.runner import run_plan
    from loadtest.scrape import MetricsWatch
    from loadtest.sources import Wanted

    target, inputs = find_target(url, given["grpc"], model)
    if given["requests"] is not None:
        content = recorded(given["requests"], inputs, given["items"])
    else:
        users = tuple(name.strip() for name in (given["user_inputs"] or "").split(",") if name.strip())
        wanted = Wanted(
            **{name: given[name] for name in ("items", "distinct", "seed", "rows", "drift")},
            ids=given["ids"] or "",
            user_inputs=users,
        )
        content = from_rows(str(given["data"]), inputs, wanted, plan.seconds)
    page = given["metrics"] or metrics_url(target)
    fetch = None if page == "none" else fetch_page(page)
    for kind in kinds:
        send_first(target, kind, content.first(kind, model))
    results: dict[str, dict[str, Any]] = {}
    click.echo(f"{model} at {target.url}: {content.description}")
    click.echo(table.head())
    for kind in kinds:
        prepared = content.prepare(kind, model)
        watch = None if fetch is None else MetricsWatch(fetch, model)
        with tempfile.TemporaryDirectory(prefix="emberline-loadtest-") as folder:
            drivers = _drivers(given, kind, target, prepared, Path(folder), connections)
            with drivers, watch or nullcontext(), progress(kind, quiet=given["quiet"]) as show:
                run = run_plan(kind, drivers, plan, show)
        generator = {"name": given["generator"], "processes": given["processes"], "connections": connections}
        results[kind] = result_of(run, watch, page, content.description, prepared.count, generator)
        for line in table.lines(run):
            click.echo(line)
        for note in results[kind]["server"]["notes"]:
            click.echo(f"  note: {note}")
        if run.interrupted or run.broken:
            break
    return results


def _drivers(given: dict[str, Any], kind: str, target: Any, prepared: Any, folder: Path, connections: int) -> Any:
    """Returns what sends the load."""
    from loadtest.compiled import CompiledDriver
    from loadtest.drivers import LocustDrivers

    name, processes = given["generator"], given["processes"]
    if name != "locust":
        return CompiledDriver(name, kind, target, prepared, folder, connections=connections, threads=processes)
    prepared.save(folder / "requests")
    return LocustDrivers(kind, target, folder / "requests", users=connections, processes=processes)
