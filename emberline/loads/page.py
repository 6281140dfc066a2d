"""The report of a load test as one HTML page, without scripts and without anything from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from emberline.loads.plots import Line, throughput_plot, time_plot
from emberline.pages.parts import document, figure, grid, key_figures

_QUANTILES = (("p50", "p50_ms", 0), ("p90", "p90_ms", 2), ("p99", "p99_ms", 1), ("max", "max_ms", 3))
_COLUMNS = (
    ("offered", "phase"),
    ("requests", "requests"),
    ("failed", "failures"),
    ("unanswered", "unanswered"),
    ("answered a second", "requests_per_second"),
    ("p50 ms", "p50_ms"),
    ("p90 ms", "p90_ms"),
    ("p99 ms", "p99_ms"),
    ("p99.9 ms", "p99_9_ms"),
    ("max ms", "max_ms"),
    ("generator's cores", "generator_cores"),
)


def to_html(title: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the page as text, to be written as UTF-8. results: what was measured, by kind of requests."""
    body = "".join(_section(kind, run) for kind, run in results.items())
    ended = max((run["ended_unix"] for run in results.values()), default=0.0)
    when = datetime.fromtimestamp(ended, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return document("Load test", title, list(results), body, f"The test ended on {when}.")


def _section(kind: str, run: Mapping[str, Any]) -> str:
    seconds = max((entry["second"] + entry["seconds"] for entry in run["over_time"]), default=1.0)
    marks = [
        (switch["second"], f"from then on {switch['to'] or 'nothing'} is served, before {switch['from'] or 'nothing'}")
        for switch in run["server"]["switches"]
    ]
    bound = run["search"]["bound_ms"] if run["search"] else None
    plots = [
        _throughput(run, bound),
        _latency(run, seconds, marks, bound),
        _rates(run, seconds, marks),
        _hits(run, seconds, marks),
    ]
    notes = [*run["generator"]["notes"], *run["server"]["notes"]]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<section id="{escape(kind)}"><h2>{escape(kind)}</h2>{key_figures(_key_figures(run))}'
        f"{f'<ul class=notes>{listed}</ul>' if listed else ''}"
        f'<div class="plots">{"".join(plots)}</div><div class="tables">{_tables(run)}</div></section>'
    )


def _key_figures(run: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    loop = "open loop: latency counts from when a request was due" if run["mode"] == "open" else "closed loop"
    found = [
        ("answered a second", f"{run['requests_per_second']:,.0f}", loop),
        ("p50", _ms(run["p50_ms"]), "with requests that had no answer"),
        ("p99", _ms(run["p99_ms"]), f"p99.9 {_ms(run['p99_9_ms'])}"),
        ("failed", f"{run['failures']:,}", f"of {run['requests']:,} requests; {run['unanswered']:,} without an answer"),
    ]
    if run["hit_rate"] is not None:
        found.append(("hit rate", f"{run['hit_rate']:.2%}", "of ids, in memory"))
    if (search := run["search"]) is not None:
        if search["rate"] is None:
            found.append((f"p99 under {search['bound_ms']:g} ms", "no rate", search["why"]))
        else:
            error = search["p99_error_ms"]
            beside = _ms(search["p99_ms"]) + (f" ± {_ms(error)}" if _is_number(error) else "")
            beside += f", held for {search['held_s']:.0f} s" if search["held_s"] else ""
            beside += ", which comes and goes" if search["steady"] is False else ""
            found.append((f"p99 under {search['bound_ms']:g} ms", f"{search['rate']:,.0f}/s", beside))
    generator = run["generator"]
    found.append(
        (
            "generator",
            generator["name"],
            f"processes: {generator['processes']}, connections: {generator['connections']}, cores of the machine: "
            f"{generator['cores_of_machine']}",
        )
    )
    return found


def _throughput(run: Mapping[str, Any], bound: float | None) -> str:
    entries = run["phases"] if run["search"] is None else run["search"]["steps"]
    entries = sorted((entry for entry in entries), key=lambda entry: entry["requests_per_second"] or 0.0)
    points = {
        name: [(entry["requests_per_second"], entry[key]) for entry in entries if _is_number(entry[key])]
        for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"))
    }
    if not points["p99"]:
        return ""
    joined = run["search"] is None
    lines = [Line("p50", points["p50"], 0, joined), Line("p99", points["p99"], 1, joined)]
    caption = "a point for each measurement" if run["search"] else "a point for each phase"
    caption += "" if bound is None else f"; the dashed line is the bound of {bound:g} ms"
    return figure("Latency by throughput", throughput_plot(lines, bound), caption, _legend(lines))


def _latency(run: Mapping[str, Any], seconds: float, marks: Sequence[tuple[float, str]], bound: float | None) -> str:
    entries = run["over_time"]
    lines = [
        Line(name, [(entry["second"], entry[key]) for entry in entries if _is_number(entry[key])], colour)
        for name, key, colour in _QUANTILES
    ]
    if not any(line.points for line in lines):
        return ""
    caption = "by when the requests were due"
    caption += "; upright lines: another snapshot is served" if marks else ""
    plot = time_plot(lines, "seconds; milliseconds", seconds, marks=marks, bound=bound, may_be_log=True)
    return figure("Latency over time", plot, caption, _legend(lines), wide=True)


def _rates(run: Mapping[str, Any], seconds: float, marks: Sequence[tuple[float, str]]) -> str:
    entries = run["over_time"]
    lines = [Line("answered", [(entry["second"], entry["requests_per_second"]) for entry in entries], 0)]
    offered = [(entry["second"], entry["offered"]) for entry in entries if entry["offered"] is not None]
    if offered:
        lines.append(Line("offered", offered, 5))
    failed = [(entry["second"], entry["failures"] / entry["seconds"]) for entry in entries]
    if any(value for _, value in failed):
        lines.append(Line("failed", failed, 3))
    plot = time_plot(lines, "seconds; requests a second", seconds, marks=marks)
    return figure("Requests over time", plot, "good answers by when they came", _legend(lines), wide=True)


def _hits(run: Mapping[str, Any], seconds: float, marks: Sequence[tuple[float, str]]) -> str:
    points = [
        (entry["second"], entry["hit_rate"])
        for entry in run["server"]["series"]
        if entry["hit_rate"] is not None and 0 <= entry["second"] <= seconds
    ]
    if not points:
        return ""
    lines = [Line("hit rate", points, 2)]
    snapshots = ", ".join(dict.fromkeys(each["snapshot"] for each in run["server"]["series"] if each["snapshot"]))
    caption = "ids whose row was in memory, among those that have a row, by the server's own metrics"
    caption += f"; snapshots served: {escape(snapshots)}" if snapshots else ""
    plot = time_plot(lines, "seconds; share of ids", seconds, marks=marks, top=1.0)
    return figure("Hit rate over time", plot, caption, _legend(lines), wide=True)


def _tables(run: Mapping[str, Any]) -> str:
    rows = [[_cell(entry[key]) for _, key in _COLUMNS] for entry in run["phases"]]
    parts = [grid("Phases", [name for name, _ in _COLUMNS], rows, wide=True)]
    if run["search"] is not None:
        steps = [
            [
                f"{step['rate']:,.1f}",
                step["purpose"],
                _cell(step["requests_per_second"]),
                _cell(step["p50_ms"]),
                _cell(step["p99_ms"]),
                step["why"] or "under the bound",
            ]
            for step in run["search"]["steps"]
        ]
        names = ("offered a second", "purpose", "answered a second", "p50 ms", "p99 ms", "result")
        parts.append(grid("Search", names, steps, wide=True))
    errors: dict[str, int] = {}
    for entry in run["phases"]:
        for text, count in entry["errors"].items():
            errors[text] = errors.get(text, 0) + count
    if errors:
        parts.append(
            grid("Failures", ("error", "requests"), [(text, f"{n:,}") for text, n in errors.items()], wide=True)
        )
    sent = [("requests", run["sent"]), ("different requests", f"{run['distinct_requests']:,}")]
    parts.append(grid("What was sent", ("", ""), sent, wide=True))
    return "".join(parts)


def _legend(lines: Sequence[Line]) -> str:
    return "".join(f'<span class="c{line.colour}"></span>{escape(line.name)}' for line in lines)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _ms(value: float | None) -> str:
    return f"{value:,.2f} ms" if _is_number(value) else "none"


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
