"""Measures servers under load in turn: their answers, their latencies, and the processor time of all their processes.

Each turn measures every server once for a few seconds, one after the other. All turns count, because the processor time
of a request changes little when others use the same cores; how much others used is noted for each measurement.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.catalog import Run
from benchmarks.gauge import QUIET_CORES, CpuGauge, busy_seconds, process_seconds
from benchmarks.generators import BadAnswersError, Figures
from benchmarks.measure import median
from benchmarks.processes import family
from tests.support.server_process import ServerProcess


@dataclass(frozen=True)
class Served:
    """A running server: its ports, its first process, and the model that is asked."""

    http_port: int
    grpc_port: int
    pid: int
    model: str
    metrics_port: int = 0

    def cpu_seconds(self) -> dict[int, float]:
        """Returns the processor time that each of its processes has used, to a hundredth of a second."""
        return {pid: process_seconds(pid) for pid in family(self.pid)}

    def counts(self) -> tuple[int, int]:
        """Returns how many requests of the model succeeded and how many failed, by the server's own account."""
        url = f"http://127.0.0.1:{self.http_port}/v2/models/{self.model}/stats"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = [each["inference_stats"] for each in json.load(answer)["model_stats"]]
        return _sum(found, "success"), _sum(found, "fail")


@dataclass(frozen=True)
class Load:
    """One measurement of a server."""

    figures: Figures
    #: Processor time of all its processes for a request, in microseconds.
    cpu_us: float
    #: That of the process that used most.
    busiest_us: float
    #: Cores that everything beside the server used: the load generator and others.
    beside_cores: float
    #: Cores of these that neither the generator nor the benchmark used.
    others_cores: float


# Sends requests to a server and returns what was measured.
Generator = Callable[[Served], Figures]


def measure_load(run: Run, served: Served, generator: Generator, in_doubt: int) -> Load:
    """Measures a server once.

    in_doubt: requests that may be under way when the generator ends. Raises BadAnswersError if the server counts more
    failures, or fewer good answers than the generator; it may count more, such as those of a run-up.
    """
    gauge = CpuGauge(children=run.children)
    counts, used, busy, began = served.counts(), served.cpu_seconds(), busy_seconds(), time.perf_counter()
    gauge.start()
    figures = generator(served)
    others, took = gauge.stop(), time.perf_counter() - began
    spent = {pid: seconds - used.get(pid, 0.0) for pid, seconds in served.cpu_seconds().items()}
    busy = busy_seconds() - busy
    succeeded, failed = (now - then for now, then in zip(served.counts(), counts, strict=True))
    if failed > in_doubt or figures.answers - succeeded > in_doubt:
        raise BadAnswersError(
            f"the server counts {succeeded} good answers and {failed} failures, the generator {figures.answers} answers"
        )
    total, most = sum(spent.values()), max(spent.values())
    return Load(figures, total / succeeded * 1e6, most / succeeded * 1e6, max(0.0, busy - total) / took, others)


@dataclass
class Turns:
    """The measurements of each contestant, one for each turn. interrupted: Ctrl-C ended them early."""

    loads: dict[str, list[Load]]
    interrupted: bool = False

    def report(
        self,
        run: Run,
        claim: str,
        value: Callable[[Load], float],
        *,
        unit: str,
        ours: str = "ours",
        against: str = "triton",
        target: float | None = None,
        less_is_better: bool = False,
    ) -> None:
        """Adds a row that compares a value of two contestants."""
        shares = [load.others_cores for loads in self.loads.values() for load in loads]
        mine, theirs = ([value(load) for load in self.loads[name]] for name in (ours, against))
        run.report.pairs(
            claim,
            mine,
            theirs,
            against,
            unit=unit,
            target=target,
            less_is_better=less_is_better,
            disturbed=median(shares) > QUIET_CORES,
        )

    def others(self) -> str:
        """Returns in words how many cores others used beside each contestant."""
        parts = []
        for name, loads in self.loads.items():
            shares = [load.others_cores for load in loads]
            parts.append(f"{name} {median(shares):.2f} ({min(shares):.2f}..{max(shares):.2f})")
        return ", ".join(parts)

    def settle(self) -> None:
        """Raises KeyboardInterrupt if the turns were interrupted; their rows are in the report by now."""
        if self.interrupted:
            raise KeyboardInterrupt


def in_turns(run: Run, contestants: Mapping[str, Callable[[], Load]]) -> Turns:
    """Measures all contestants in turn, as often as the run repeats. The first turn warms up and is not kept."""
    turns = Turns({name: [] for name in contestants})
    try:
        for turn in range(1 + (2 if run.quick else run.repeats)):
            loads = {name: contestant() for name, contestant in contestants.items()}
            if turn:
                for name, load in loads.items():
                    turns.loads[name].append(load)
    except KeyboardInterrupt:
        turns.interrupted = True
    return turns


@contextlib.contextmanager
def serve(
    run: Run, repository: Path, store: Path, model: str, *, open_admin: bool = False, arguments: Sequence[str] = ()
) -> Iterator[Served]:
    """Runs `emberline serve` of a repository; its processor time counts as ours. arguments: more of the command."""
    log = store.with_suffix(".log")
    server = ServerProcess(repository, store, log, open_admin=open_admin, arguments=arguments)
    with server, run.counted(*family(server.process.pid)):
        yield Served(server.http_port, server.grpc_port, server.process.pid, model, server.metrics_port)


def _sum(statistics: list[dict[str, dict[str, int]]], name: str) -> int:
    return sum(int(each[name]["count"]) for each in statistics)
