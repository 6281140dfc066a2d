"""Claim: sessions that follow the load answer a peak as a fixed number of sessions that was chosen for it does.

The rows of a ranking model lie on a disk that takes a millisecond more for each read, as a volume over the network does
(tests/faults/slow_reads.c), so that a session waits for the disk most of the time, and several of them answer more
requests, also on two cores. Each request fills a batch, as a ranker's with its candidates does: small ones would be
merged and share the wait. An open loop in a process of its own sends a low rate, a high one, and the low one again: to
sessions that follow the load, to one session, and to that number of sessions which answers most.

    python -m benchmarks.sessions_by_load                               # about twenty minutes
    python -m benchmarks.sessions_by_load --plot docs/sessions.svg      # the same, and a picture
    python -m benchmarks.sessions_by_load --quick                       # about two
"""

from __future__ import annotations

import re
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.delta_world import DENSE, DeltaWorld
from benchmarks.gauge import QUIET_CORES, CpuGauge
from benchmarks.paced_load import PacedLoad, max_rate, save_bodies, window
from benchmarks.processes import family
from benchmarks.report import Report
from loadtest.bodies import binary_body
from loadtest.rows import Tensor
from tests.faults.injector import slow_reads
from tests.support.server_process import ServerProcess

QUICK_S = 150.0
MOST, BATCH, IDS, READ_MS = 8, 16, 8, 1
# Shares of what one session answers, and of what the best number of them does.
LOW, HIGH = 0.4, 0.8
TARGET = 1 / 1.25
_OPTIONS = {"max_sessions": str(MOST), "dram_bytes": "1MiB"}
_LOOK_S = 0.25


def measure(run: Run) -> None:
    """Measures the three ways through the same phases."""
    world = DeltaWorld(run.work / "models", "ranker", run.size(1_000_000, 200_000))
    config = run.work / "models" / "ranker" / "config.pbtxt"
    entries = [f'parameters {{ key: "{key}" value {{ string_value: "{v}" }} }}\n' for key, v in _OPTIONS.items()]
    text = re.sub(r"(?m)^max_batch_size:.*$", f"max_batch_size: {BATCH}", config.read_text())
    config.write_text(text + "".join(entries))
    bodies = run.work / "bodies.npz"
    save_bodies(bodies, _bodies(world.rows))
    switch = run.work / "slow"
    with (
        ServerProcess(
            run.work / "models",
            run.work / "store",
            run.work / "server.log",
            open_admin=True,
            environment=slow_reads(run.work, switch, READ_MS),
        ) as server,
        run.counted(*family(server.process.pid)),
    ):
        switch.touch()
        answered = {}
        for count in (1, 2, 4, MOST):
            _sessions(server, {"count": count})
            answered[count] = max_rate(server.http_port, "ranker", bodies, run.work / "records.npy")
        best = max(answered, key=answered.__getitem__)
        run.report.remark(
            "requests/s by sessions: " + ", ".join(f"{count}: {rate:.0f}" for count, rate in answered.items())
        )
        low = LOW * answered[1]
        _phases(run, server, bodies, [low, HIGH * answered[best], low], best)


def _phases(run: Run, server: ServerProcess, bodies: Path, rates: list[float], best: int) -> None:
    modes: dict[str, int | None] = {"by load": None, "one": 1, "best": best}
    phase_s = 20.0 if run.quick else 45.0
    turns = 1 if run.quick else 3
    p99: dict[str, list[list[float]]] = {name: [] for name in modes}
    gauge = CpuGauge(children=[*run.children])
    gauge.start()
    for turn in range(turns):
        for name, count in modes.items():
            if run.is_late(f"{name}, turn {turn + 1}"):
                break
            _sessions(server, {"count": count or 1})
            _sessions(server, {"count": count})
            found = _through(run, server, bodies, rates, phase_s)
            p99[name].append(found["p99"])
            if name != "by load":
                continue
            before = 0
            steps = []
            for sessions in found["sessions"]:
                steps.append(f"{sum(one != other for one, other in pairwise([before, *sessions]) if one)} changes")
                before = sessions[-1]
            ends = [sessions[-1] for sessions in found["sessions"]]
            run.report.remark(f"turn {turn + 1}: sessions at the ends of the phases {ends}, {', '.join(steps)}")
            run.report.lines = found["lines"]
    is_disturbed = gauge.stop() > QUIET_CORES
    for phase, what in ((1, "the peak"), (2, "the low rate after it")):
        for against, target in (("best", TARGET), ("one", None)):
            pairs = list(zip(p99["by load"], p99[against], strict=False))
            if pairs:
                run.report.pairs(
                    f"p99 of {what}, sessions by load",
                    [ours[phase] for ours, _ in pairs],
                    [theirs[phase] for _, theirs in pairs],
                    "one session" if against == "one" else f"{best} sessions",
                    unit="ms",
                    target=target,
                    less_is_better=True,
                    disturbed=is_disturbed,
                )


def _through(run: Run, server: ServerProcess, bodies: Path, rates: list[float], phase_s: float) -> dict[str, Any]:
    """Sends the phases; returns the p99 of the last third of each, the sessions seen in each, and lines over time."""
    began, seen, stop = time.monotonic(), [], threading.Event()

    def look() -> None:
        while not stop.wait(_LOOK_S):
            seen.append((time.monotonic() - began, _sessions(server)["versions"][0]["count"]))

    looking = threading.Thread(target=look)
    looking.start()
    p99, sessions, offered, tail = [], [], [], []
    for number, rate in enumerate(rates):
        at = time.monotonic()
        load = PacedLoad(server.http_port, "ranker", rate, bodies, run.work / "records.npy").start()
        with run.counted(load.pid):
            time.sleep(phase_s)
            records = load.stop()
        p99.append(_p99(window(records, at + phase_s * 2 / 3, at + phase_s)))
        sessions.append([count for when, count in seen if when >= at - began])
        for second in range(int(phase_s)):
            part = window(records, at + second, at + second + 1)
            offered.append((at - began + second, len(part)))
            if len(part):
                tail.append((at - began + second, _p99(part)))
        failed = int((records["good"] == 0).sum())
        if failed:
            run.report.remark(f"phase {number + 1}: {failed} of {len(records):,} requests failed")
    stop.set()
    looking.join()
    return {"p99": p99, "sessions": sessions, "lines": {"requests/s": offered, "sessions": seen, "p99 in ms": tail}}


def draw(report: Report, path: Path) -> None:
    """Draws rate, sessions and p99 over the seconds of the last turn, one below the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(picture)
    for place, (axes, (name, line)) in enumerate(
        zip(picture.subplots(3, 1, sharex=True), report.lines.items(), strict=True)
    ):
        axes.step(*zip(*line, strict=True), where="post", color=("tab:gray", "tab:blue", "tab:orange")[place])
        axes.set_ylabel(name)
        if name.startswith("p99"):
            axes.set_yscale("log")
            axes.set_xlabel("seconds")
        else:
            axes.set_ylim(bottom=0)
    picture.suptitle("Sessions that follow the load (python -m benchmarks.sessions_by_load)")
    picture.savefig(path)


def _p99(records: Any) -> float:
    return float(np.percentile(records["ms"], 99)) if len(records) else float("nan")


def _bodies(rows: int) -> list[tuple[bytes, int]]:
    """Returns requests whose ids are all equally likely, so that hardly any row is in DRAM."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(400):
        ids = rng.integers(0, rows, (BATCH, IDS))
        dense = rng.standard_normal((BATCH, DENSE)).astype(np.float32)
        found.append(binary_body([Tensor("items", "INT64", ids), Tensor("dense", "FP32", dense)]))
    return found


def _sessions(server: ServerProcess, content: dict[str, int | None] | None = None) -> Any:
    """Asks for the sessions, or sets their number."""
    return server.control("ranker", "sessions", content)


if __name__ == "__main__":
    script("sessions_by_load")
