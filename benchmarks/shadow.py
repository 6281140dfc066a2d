"""Claim: a shadow of a tenth of the requests leaves the main arm's p99 within 1.05 times what it is without.

A ranking model of a million rows serves half of its maximum load over HTTP, from an open loop in a process of its own.
Windows with the shadow, without it, and without it once more follow each other in changing order. The two without show
how far two windows differ by chance.

    python -m benchmarks.shadow            # about seven minutes
    python -m benchmarks.shadow --quick    # about one
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.gauge import QUIET_CORES, CpuGauge
from benchmarks.live_updates import Bench, answer_from
from benchmarks.measure import median
from benchmarks.paced_load import PacedLoad, max_rate, window
from benchmarks.processes import family
from tests.support.server_process import ServerProcess

QUICK_S = 90.0
SHARE, TARGET = 0.1, 1 / 1.05
# The first part of a window is left out, because it begins with a control call.
_RUN_UP_S = 0.5


def measure(run: Run) -> None:
    """Measures the claim, and what the shadow had to drop."""
    bench = Bench(run.work, run.size(1_000_000, 100_000))
    candidate, _ = bench.make(10_000)
    log = bench.work / "server.log"
    with (
        ServerProcess(bench.work / "models", bench.work / "store", log, open_admin=True) as server,
        run.counted(*family(server.process.pid)),
    ):
        bench.appear(candidate)
        answer_from(server.http_port, candidate, bench.world.bodies(1, 1)[0])
        server.control("ranker", "rollback", {})  # the candidate is staged and held: a shadow of it begins at once
        most = max_rate(server.http_port, "ranker", bench.bodies, bench.work / "records.npy")
        _windows(run, bench, server, most)


def _windows(run: Run, bench: Bench, server: ServerProcess, most: float) -> None:
    window_s = 2.0 if run.quick else 4.0
    repeats = 5 if run.quick else max(run.repeats, 25)
    load = PacedLoad(server.http_port, "ranker", most / 2, bench.bodies, bench.work / "records.npy")
    gauge = CpuGauge(children=[*run.children])
    spans: list[dict[str, float]] = []
    with run.counted(*_started(load)):
        time.sleep(2.0)
        gauge.start()
        for turn in range(repeats):
            order = ("on", "off", "again") if turn % 2 == 0 else ("again", "off", "on")
            spans.append({})
            for name in order:
                if name == "on":
                    server.control("ranker", "shadow", {"to": "1.1", "share": SHARE})
                    time.sleep(_RUN_UP_S)
                spans[-1][name] = time.monotonic() + _RUN_UP_S
                time.sleep(_RUN_UP_S + window_s)
                if name == "on":
                    state = server.control("ranker", "shadow", {"to": "1.1", "share": SHARE})["shadow"]
                    server.control("ranker", "shadow", {"stop": True})
            if run.is_late(f"{repeats - turn - 1} of {repeats} turns"):
                break
        others = gauge.stop()
        records = load.stop()
    p99 = {
        name: [float(np.percentile(window(records, at[name], at[name] + window_s)["ms"], 99)) for at in spans]
        for name in ("on", "off", "again")
    }
    is_disturbed = others > QUIET_CORES
    for name, claim, target in (
        ("on", f"p99 with a shadow of {SHARE:.0%}, at half load", TARGET),
        ("again", "p99 without a shadow, twice: what chance makes of it", None),
    ):
        run.report.pairs(
            claim,
            p99[name],
            p99["off"],
            "without a shadow",
            unit="ms",
            target=target,
            less_is_better=True,
            disturbed=is_disturbed,
        )
    failed = int((records["good"] == 0).sum())
    sampled = state["requests"] + sum(state["dropped"].values())
    run.report.remark(
        f"{most / 2:.0f} requests/s, half of {most:.0f}; {failed} of {len(records):,} failed; p99 with over without: "
        f"x{median([on / off for on, off in zip(p99['on'], p99['off'], strict=True)]):.3f}, by turn "
        f"{', '.join(f'{on / off:.2f}' for on, off in zip(p99['on'], p99['off'], strict=True))}"
    )
    run.report.remark(
        f"in the last turn {state['requests']:,} of {sampled:,} sampled requests were compared, {state['dropped']} "
        f"dropped; verdict: {state['verdict']}, {state['reason']}"
    )


def _started(load: PacedLoad) -> list[int]:
    load.start()
    return [load.pid]


if __name__ == "__main__":
    script("shadow")
