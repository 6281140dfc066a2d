"""Claim: the rate that `emberline loadtest --find-p99 10 --hold 5m` finds keeps that p99 for five minutes more.

A DLRM is served, and the command searches, confirms and holds as a user would ask it to. Then the rate is sent for five
minutes by a command of its own, and the p99 of these is compared with that of the search, for each turn.

    python -m benchmarks.held_rate           # three turns, of half an hour to an hour each
    python -m benchmarks.held_rate --quick   # one, of short measurements: about three minutes
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_requests import MODEL
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.gauge import QUIET_CORES, CpuGauge
from benchmarks.served_load import Served, serve
from loadtest.bodies import json_body

QUICK_S = 200.0
BOUND_MS = 10
BATCH, REQUESTS = 64, 512
WITHIN = 1.1
TURNS = 3
STEP, QUICK_STEP = "10s", "2s"
HOLD, QUICK_HOLD = "5m", "20s"


def measure(run: Run) -> None:
    """Measures the one claim."""
    world = DlrmWorld(run.work / "models", run.work / "weights.safetensors")
    requests = run.work / "requests.jsonl"
    requests.write_bytes(b"".join(json_body(world.request(BATCH)) + b"\n" for _ in range(REQUESTS)))
    held: list[float] = []
    found: list[float] = []
    with serve(run, run.work / "models", run.work / "store", MODEL) as served:
        gauge = CpuGauge(children=run.children)
        gauge.start()
        try:
            for turn in range(1 if run.quick else min(TURNS, run.repeats)):
                if run.is_late(f"turn {turn + 1}"):
                    break
                search = _found(run, served, requests)
                after = _sent(run, served, requests, search["rate"])
                held.append(after)
                found.append(search["p99_ms"])
                holds = [step for step in search["steps"] if step["purpose"] == "hold"]
                run.report.remark(
                    f"turn {turn + 1}: {search['rate']:.0f} requests/s after {len(search['steps'])} measurements, "
                    f"{len(holds)} of them holds ({'; '.join(_outcome(step) for step in holds)}); p99 {found[-1]:.2f} "
                    f"ms, then {held[-1]:.2f} ms, {held[-1] / found[-1] - 1:+.1%}"
                )
        finally:
            others = gauge.stop()
            # A p99 that is lower than the search said is as far from it as one that is higher.
            pairs = list(zip(held, found, strict=True))
            run.report.pairs(
                f"p99 of the rate under {BOUND_MS} ms, {QUICK_HOLD if run.quick else HOLD}, batch {BATCH}: the larger",
                [max(pair) for pair in pairs],
                [min(pair) for pair in pairs],
                "the smaller of it and the search's",
                unit="ms",
                target=1 / WITHIN,
                less_is_better=True,
                disturbed=others > QUIET_CORES,
            )


def _found(run: Run, served: Served, requests: Path) -> dict[str, Any]:
    """Searches and holds; returns what the command says of its search."""
    step, hold = (QUICK_STEP, QUICK_HOLD) if run.quick else (STEP, HOLD)
    figures = _load(run, served, requests, "--find-p99", str(BOUND_MS), "--step", step, "--hold", hold)
    search: dict[str, Any] = figures["search"]
    if not search["held_s"]:
        raise RuntimeError(f"no rate was held: {search['why']}")
    return search


def _sent(run: Run, served: Served, requests: Path, rate: float) -> float:
    """Sends a rate for as long as a hold; returns its p99 in milliseconds."""
    # As in a search, the first second does not count.
    phases = f"{rate}@1s,{rate}@{QUICK_HOLD if run.quick else HOLD}"
    p99: float = _load(run, served, requests, "--rate", phases)["phases"][1]["p99_ms"]
    return p99


def _load(run: Run, served: Served, requests: Path, *load: str) -> dict[str, Any]:
    figures = run.work / "figures.json"
    ports = [f"http://127.0.0.1:{served.http_port}", f"127.0.0.1:{served.grpc_port}"]
    command = [
        *(sys.executable, "-m", "emberline", "loadtest", "--url", ports[0], "--grpc", ports[1], "--metrics", "none"),
        *("--model", served.model, "--requests", str(requests), *load, "--json", str(figures), "--quiet"),
    ]
    figures.unlink(missing_ok=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found: dict[str, Any] = json.loads(figures.read_bytes())["http_binary"] if figures.exists() else {}
    if not found or found["failures"] or found["unanswered"]:
        raise RuntimeError(f"emberline loadtest ended with {done.returncode}: {done.stdout[-2000:]}")
    return found


def _outcome(step: dict[str, Any]) -> str:
    return f"{step['rate']:.0f}/s: {step['why'] or 'held'}"


if __name__ == "__main__":
    script("held_rate")
