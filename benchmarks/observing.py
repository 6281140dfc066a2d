"""Claims: metrics and structured logs cost at most 2% of a server's requests, traces of one percent of them 3%, and
the console open in five browsers 2%.

Five servers of the same DLRM run all the time and are asked in turn by wrk over HTTP, at batches of 1 and 512 rows.
Two observe nothing: how much they differ is chance, which is several percent between processes. One is asked for its
metrics every second and writes a line of JSON for each request. One sends the traces of one percent of its requests to
a receiver of OTLP in a process of its own. One has five readers of the events that the console reads, which take what a
browser gets and draw nothing. The processor time of a request is that of all processes of a server, from /proc.

    apt-get install wrk                    # once
    python -m benchmarks.observing         # about eight minutes
    python -m benchmarks.observing --quick
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_requests import MODEL, Requests
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.generators import program
from benchmarks.measure import median
from benchmarks.peers import PeerMissingError
from benchmarks.served_load import Served, in_turns, serve
from tests.support.server_process import free_ports

QUICK_S = 200.0
BATCHES = (1, 512)
CONNECTIONS = 8
SAMPLING = 0.01
LOGGED, TRACED, WATCHED = 0.98, 0.97, 0.98
BROWSERS = 5
_SCRAPE_S = 1.0
# A receiver that counts what it gets and keeps nothing.
_RECEIVER = """
import logging, sys
from oteltest.sink import HttpSink
class Count:
    def handle_trace(self, request, headers): pass
    handle_metrics = handle_logs = handle_trace
HttpSink(Count(), logging.getLogger(), port=int(sys.argv[1]), daemon=False).start()
"""


def measure(run: Run) -> None:
    """Measures the claims at each batch."""
    try:
        program("wrk", "wrk")
    except PeerMissingError as error:
        run.report.remark(f"left out: {error}")
        return
    requests = Requests(run, DlrmWorld(run.work / "models", run.work / "weights.safetensors"))
    with _servers(run) as servers:
        for batch in BATCHES:
            what = f"batch {batch}"
            if run.is_late(what):
                return
            _batch(run, requests, batch, servers)


def _batch(run: Run, requests: Requests, batch: int, servers: dict[str, Served]) -> None:
    contestants = {name: partial(requests.load, each, "http", batch, CONNECTIONS) for name, each in servers.items()}
    turns = in_turns(run, contestants)
    claims: tuple[tuple[str, float | None, str], ...] = (
        ("again", None, "a second server that observes nothing"),
        ("logged", LOGGED, "metrics and logs"),
        ("traced", TRACED, "traces of 1%"),
        ("watched", WATCHED, f"the console in {BROWSERS} browsers"),
    )
    for ours, target, claim in claims:
        of = f"{claim}, batch {batch}"
        turns.report(
            run,
            of,
            lambda load: load.figures.requests,
            unit="requests/s",
            ours=ours,
            against="plain",
            target=target,
        )
        turns.report(
            run,
            f"{of}: server CPU",
            lambda load: load.cpu_us,
            unit="us",
            ours=ours,
            against="plain",
            less_is_better=True,
        )
    cpu = {name: median([load.cpu_us for load in loads]) for name, loads in turns.loads.items()}
    run.report.remark(
        f"batch {batch}, processor time of a request: {', '.join(f'{name} {us:.1f} us' for name, us in cpu.items())}; "
        f"cores that others used: {turns.others()}"
    )
    turns.settle()


@contextlib.contextmanager
def _servers(run: Run) -> Iterator[dict[str, Served]]:
    """Starts the servers, the receiver of traces, and what asks for metrics."""
    models, (port,) = run.work / "models", free_ports(1)
    logged = ["--log-format", "json", "--access-log", str(run.work / "access.log"), "--slow-request-ms", "1000"]
    traced = ["--trace-otlp", f"http://127.0.0.1:{port}", "--trace-sampling", str(SAMPLING)]
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(subprocess.Popen([sys.executable, "-c", _RECEIVER, str(port)]))
        stack.callback(receiver.kill)
        run_server = partial(serve, run, models)
        plain = stack.enter_context(run_server(run.work / "plain", MODEL))
        observed = stack.enter_context(run_server(run.work / "logged", MODEL, arguments=logged))
        sampled = stack.enter_context(run_server(run.work / "traced", MODEL, arguments=traced))
        stack.enter_context(_scraped(observed))
        watched = stack.enter_context(run_server(run.work / "watched", MODEL))
        for _ in range(BROWSERS):
            stack.enter_context(_console(watched))
        again = stack.enter_context(run_server(run.work / "again", MODEL))
        yield {"plain": plain, "again": again, "logged": observed, "traced": sampled, "watched": watched}


@contextlib.contextmanager
def _console(served: Served) -> Iterator[None]:
    """Reads the events of the console of a server, as a browser does that shows a model."""
    connection = http.client.HTTPConnection("127.0.0.1", served.metrics_port, timeout=30)
    connection.request("GET", f"/console/events?model={served.model}")
    sending = connection.sock  # the connection gives it to an answer without an end
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise RuntimeError(f"the console answered {answer.status}")

    def read() -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the connection was closed below
            while answer.readline():
                pass

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        sending.shutdown(socket.SHUT_RDWR)
        thread.join()
        answer.close()
        connection.close()


@contextlib.contextmanager
def _scraped(served: Served) -> Iterator[None]:
    """Asks for the metrics of a server every second, as Prometheus does more seldom."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(_SCRAPE_S):
            with urllib.request.urlopen(f"http://127.0.0.1:{served.metrics_port}/metrics", timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    script("observing")
