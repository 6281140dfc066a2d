"""Claims: served with deltas every two seconds, a model keeps the AUC that the same model, updated once a day, loses.

Users' tastes turn by 60 degrees a day and half of the items are new each day, so what was learned goes stale. A day
takes a minute. Two models that were trained on the same first day are served beside each other: one follows the clicks
(`emberline update --follow`), the other is updated over each day's clicks when the day is over (`emberline update`).
Each second's clicks are scored by the server before either of them can learn from them. The best that is possible is
the AUC of the probabilities that the clicks were drawn with.

    python -m benchmarks.drift --plot docs/drift.svg       # about six minutes
    python -m benchmarks.drift --quick
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.drift_world import CONFIG, Clicks, DriftWorld
from benchmarks.line_chart import line_chart
from benchmarks.report import Report
from storage.errors import Unavailable
from trainer import train
from trainer.metrics import auc

QUICK_S = 120.0
DAY_S, QUICK_DAY_S, DAYS, QUICK_DAYS = 60.0, 12.0, 5, 2
ROWS_PER_SECOND, SCORED = 1_500, 400
DELTA_EVERY_S = 2.0
# Seconds whose clicks make one figure.
_WINDOW = 5
# The live guard stops accidents, and takes a model that changed as much as here in a day for one.
NO_GUARD = 'parameters { key: "live_guard" value { string_value: "false" } }\n'
FOLLOWS, DAILY, BEST = "follows the clicks", "updated once a day", "best possible"
_NAMES = {FOLLOWS: "live", DAILY: "daily"}


def measure(run: Run) -> None:
    """Serves both models over some days and measures the AUC of what they answered."""
    from tests.support.server_process import ServerProcess

    day_s, days = (QUICK_DAY_S, QUICK_DAYS) if run.quick else (DAY_S, DAYS)
    repository, stream = run.work / "models", run.work / "clicks"
    stream.mkdir()
    world = DriftWorld(day_s, time.time())
    history = pa.concat_tables(
        [world.clicks(ROWS_PER_SECOND, world_time).table for world_time in time.time() - np.arange(day_s, 0.0, -1.0)]
    )
    for name in _NAMES.values():
        (run.work / f"{name}.yaml").write_text(CONFIG.format(name=name))
        train(run.work / f"{name}.yaml", history, output=run.work / name, repository=repository, progress=False)
        with (repository / name / "config.pbtxt").open("a") as file:
            file.write(NO_GUARD)
    with ServerProcess(repository, run.work / "store", run.work / "server.log") as server:
        following = emberline(run.work, "live", "--follow", str(stream), "--every-seconds", f"{DELTA_EVERY_S:g}")
        try:
            world = DriftWorld(day_s, time.time())
            found = _days(run.work, world, stream, server.http_port, round(day_s * days), round(day_s))
            if following.poll() is not None:
                raise Unavailable(f"the training ended: {log_of(run.work, 'live')}")
        finally:
            following.terminate()
            following.wait(60)
        shown = server.metrics()
        refused = [reason for name in _NAMES.values() for reason in refused(server.url, name)]
    _report(run, found, day_s)
    counts = [shown.get(f'emberline_deltas_applied_total{{model="{name}"}}', 0.0) for name in _NAMES.values()]
    run.report.remark(f"the server took {counts[0]:.0f} deltas of the one and {counts[1]:.0f} of the other")
    for reason in refused:
        run.report.remark(f"refused: {reason}")


def draw(report: Report, path: Path) -> None:
    """Draws the AUC over the days."""
    days = range(1, round(max(x for x, _ in report.lines[BEST])) + 1)
    title = "AUC of what is served, while tastes turn and items change"
    path.write_text(line_chart(report.lines, title, x_name="days", y_name="AUC", marks=[*days]), encoding="utf-8")


def _days(
    work: Path, world: DriftWorld, stream: Path, port: int, seconds: int, day_s: int
) -> list[tuple[Clicks, dict[str, Any]]]:
    """Writes clicks second by second, each scored before; returns what was scored, with the scores by model."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    began, found = time.time(), []
    day: list[Any] = []
    update: subprocess.Popen[bytes] | None = None
    for second in range(seconds):
        time.sleep(max(0.0, began + second - time.time()))
        clicks = world.clicks(ROWS_PER_SECOND, time.time())
        scored = Clicks(clicks.table.slice(0, SCORED), clicks.probabilities[:SCORED])
        found.append((scored, {name: ask(client, name, scored.table) for name in _NAMES.values()}))
        hidden = stream / f".{second:06d}.parquet"
        pq.write_table(clicks.table, hidden)
        hidden.rename(stream / f"{second:06d}.parquet")
        day.append(clicks.table)
        if len(day) == day_s:
            if update is not None and update.wait(60) != 0:
                raise Unavailable(f"the daily update failed: {log_of(work, 'daily')}")
            data = work / f"day{second}.parquet"
            pq.write_table(pa.concat_tables(day), data)
            day = []
            update = emberline(work, "daily", "--data", str(data))
    if update is not None:
        update.wait(60)
    return found


def emberline(work: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    """Starts an update of the run of that name in `work`, which writes into NAME.log."""
    command = [sys.executable, "-m", "emberline", "update", str(work / name), "--repository", str(work / "models")]
    with (work / f"{name}.log").open("w") as output:
        return subprocess.Popen(
            [*command, *options, "--quiet"], stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ)
        )


def log_of(work: Path, name: str) -> str:
    """Returns the end of what an update has written."""
    return (work / f"{name}.log").read_text()[-1000:]


def ask(client: http.client.HTTPConnection, name: str, table: Any) -> np.ndarray[Any, Any]:
    """Returns the server's scores (N,) of users and items."""
    inputs = [
        {"name": column, "shape": [table.num_rows], "datatype": "INT64", "data": table.column(column).to_pylist()}
        for column in ("user", "item")
    ]
    client.request("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": inputs}))
    response = client.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise Unavailable(f"the server answered {response.status}: {answer}")
    return np.array(answer["outputs"][0]["data"])


def refused(url: str, name: str) -> list[str]:
    """Returns the reasons for which the server has refused snapshots of a model."""
    return [str(entry["reason"]) for entry in _snapshots(url, name)["quarantined"]]


def served(url: str, name: str) -> str:
    """Returns the id of the snapshot that is served."""
    return str(_snapshots(url, name)["served"]["id"])


def _snapshots(url: str, name: str) -> Any:
    with urllib.request.urlopen(f"{url}/v2/repository/models/{name}/snapshots") as answer:
        return json.load(answer)


def _report(run: Run, found: list[tuple[Clicks, dict[str, Any]]], day_s: float) -> None:
    """Adds the AUC of each day, and the lines of the picture."""
    labels = [clicks.table.column("clicked").to_numpy(zero_copy_only=False) for clicks, _ in found]
    scores = {
        **{text: [scored[name] for _, scored in found] for text, name in _NAMES.items()},
        BEST: [clicks.probabilities for clicks, _ in found],
    }

    def measured(text: str, first: int, last: int) -> float:
        return auc(np.concatenate(labels[first:last]).astype(np.float32), np.concatenate(scores[text][first:last]))

    for text in scores:
        run.report.lines[text] = [
            ((first + _WINDOW / 2) / day_s, measured(text, first, first + _WINDOW))
            for first in range(0, len(found) - _WINDOW + 1, _WINDOW)
        ]
    length = round(day_s)
    starts = range(0, len(found) - length + 1, length)
    by_day = {text: [measured(text, first, first + length) for first in starts] for text in scores}
    claim = "AUC of what is served with deltas, of each day's clicks"
    run.report.pairs(claim, by_day[FOLLOWS], by_day[DAILY], DAILY, unit="AUC", target=1.0)
    run.report.pairs(claim, by_day[FOLLOWS], by_day[BEST], BEST, unit="AUC")
    for text, values in by_day.items():
        run.report.remark(f"{text}: " + ", ".join(f"{value:.4f}" for value in values) + " by day")


if __name__ == "__main__":
    script("drift")
