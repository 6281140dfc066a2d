"""Claims: the engine beside itself: the cost of a request, an echo, one user with many items, more load than it can
answer, two sessions.

`emberline serve` and the load generator run in processes of their own and share the machine, so requests/s include the
cost of the load. For two sessions a second row accounts for the cores that the load and others used. Answers are
compared before anything is timed.

    python -m benchmarks.engine            # about four minutes
    python -m benchmarks.engine --quick
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.echo_server import ROWS, WIDTH
from benchmarks.generators import Figures, program
from benchmarks.generators.wrk import run_wrk, save_script
from benchmarks.measure import Contestant
from benchmarks.open_load import run_load
from benchmarks.paced_load import max_rate, save_bodies
from benchmarks.peers import PeerMissingError
from benchmarks.ranking_world import RankingWorld
from benchmarks.served_load import Load, Served, in_turns, measure_load, serve
from benchmarks.stages import Stages
from loadtest.bodies import binary_body
from loadtest.rows import Tensor
from tests.support.server_process import free_ports

PARTS = ("code", "echo", "user", "overload", "sessions")
ITEMS, HISTORY = 512, 200
CONNECTIONS = 16
ONCE, SESSIONS = 2.0, 1.7
OWN_CODE_US = 60.0
ECHO = 0.6
GOODPUT, P99 = 0.95, 1.5
MAX_WAITS_MS = (20, 5)
_MAX_S = 90.0


def measure(run: Run) -> None:
    """Measures every claim."""
    if run.wants("code"):
        own_code(run)
    if run.wants("echo"):
        echo(run)
    under_load(run)


def under_load(run: Run) -> None:
    """Measures the claims about users, overload and sessions."""
    try:
        program("wrk", "wrk")
    except PeerMissingError as error:
        run.report.remark(f"left out: {error}")
        return
    if run.wants("user") or run.wants("overload"):
        world = RankingWorld(run.work / "models", "ranker", history=HISTORY)
        if run.wants("user"):
            user_side(run, world)
        if run.wants("overload"):
            for max_wait_ms in MAX_WAITS_MS:
                overload(run, world, max_wait_ms)
    if run.wants("sessions") and not run.is_late("sessions"):
        sessions(run)


def own_code(run: Run) -> None:
    """Measures the cost of a request of one row outside the lookup and the graph."""
    sums: list[float] = []
    with Stages(run.work) as stages:
        for _ in range(2 if run.quick else run.repeats):
            found = stages.microseconds()
            sums.append(sum(us for name, us in found.items() if not name.startswith("(")))
    run.report.pairs(
        "own code of a request of one row, 32 under way",
        sums,
        [OWN_CODE_US] * len(sums),
        "bound",
        unit="us",
        target=1.0,
        less_is_better=True,
    )
    run.report.remark("of one row, us: " + ", ".join(f"{name} {us:.1f}" for name, us in found.items()))


def echo(run: Run) -> None:
    """Echoes 133 kB through our HTTP protocol without a model, beside a plain ASGI application."""
    rng = np.random.default_rng(1)
    body = binary_body([Tensor("values", "FP32", rng.standard_normal((ROWS, WIDTH)).astype(np.float32))])
    with _echo_server("ours") as own, _echo_server("asgi") as bare:
        for port in (own, bare):
            headers = {"Inference-Header-Content-Length": str(body[1])}
            if post(port, "/v2/models/echo/infer", body[0], headers)[-4 * WIDTH :] != body[0][-4 * WIDTH :]:
                raise RuntimeError("the echo is not what was sent")
        contestants = {"ours": _echo_load(run, own, body), "raw ASGI": _echo_load(run, bare, body)}
        samples = run.interleave(contestants, max_s=_MAX_S)
    run.report.compare("HTTP echo of 133 kB", samples, "raw ASGI", unit="requests/s", target=ECHO)
    run.settle(samples)


@contextlib.contextmanager
def _echo_server(which: str) -> Iterator[int]:
    """Starts a server and yields its port."""
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.echo_server", which, str(port)])
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def user_side(run: Run, world: RankingWorld) -> None:
    """Measures 512 items with one row of the user, beside the same with the user repeated in every row."""
    seeds = world.rng.bit_generator.state
    once = world.bodies(20, ITEMS, users=1)
    world.rng.bit_generator.state = seeds
    repeated = world.bodies(20, ITEMS, users=ITEMS)
    with serving(run, "models", "ranker") as served:
        for one, other in zip(once[:3], repeated[:3], strict=True):
            np.testing.assert_allclose(scores(served.http_port, one), scores(served.http_port, other), atol=1e-5)
        turns = in_turns(
            run, {"once": load(run, served, "once", once), "repeated": load(run, served, "repeated", repeated)}
        )
    what = f"{ITEMS} items of one user with a history of {HISTORY}"
    turns.report(
        run, what, lambda load: load.figures.requests, unit="requests/s", ours="once", against="repeated", target=ONCE
    )
    turns.report(
        run,
        f"{what}: server CPU of a request",
        lambda load: load.cpu_us,
        unit="us",
        ours="once",
        against="repeated",
        less_is_better=True,
    )
    run.report.remark(f"{what}: cores that others used: {turns.others()}")
    turns.settle()


def overload(run: Run, world: RankingWorld, max_wait_ms: int) -> None:
    """Sends three times the requests that the server can answer, with a bounded wait, beside what it can answer."""
    what = f"3x overload, {ITEMS} items, waits of {max_wait_ms} ms"
    if run.is_late(what):
        return
    config = run.work / "models" / "ranker" / "config.pbtxt"
    kept = "".join(line for line in config.read_text().splitlines(keepends=True) if "max_wait_ms" not in line)
    config.write_text(f'{kept}parameters {{ key: "max_wait_ms" value {{ string_value: "{max_wait_ms}" }} }}\n')
    saved, result = run.work / "overload.npz", run.work / "overload.npy"
    save_bodies(saved, world.bodies(20, ITEMS, users=1))
    seconds = 1.5 if run.quick else 4.0
    found: list[dict[str, float]] = []
    with serving(run, "models", "ranker") as served:
        port = served.http_port
        for _ in range(2 if run.quick else run.repeats):
            most = run_load(port, "ranker", 0.0, seconds, saved, result)
            capacity = np.count_nonzero(most["status"] == 200) / seconds
            calm = run_load(port, "ranker", 0.8 * capacity, seconds, saved, result)
            storm = run_load(port, "ranker", 3.0 * capacity, seconds, saved, result)
            good, refused = storm[storm["status"] == 200], storm[storm["status"] == 503]
            if len(good) + len(refused) != len(storm):
                raise RuntimeError(f"other answers than 200 and 503: {np.unique(storm['status'])}")
            found.append(
                {
                    "capacity": capacity,
                    "goodput": len(good) / (storm["sent"].max() + 1e-9),
                    "refused": float(np.median(refused["ms"])) if len(refused) else 0.0,
                    "p99": float(np.percentile(good["ms"], 99)),
                    "calm": float(np.percentile(calm["ms"][calm["status"] == 200], 99)),
                    "offered": len(storm) / (storm["sent"].max() + 1e-9),
                }
            )

    def values(name: str) -> list[float]:
        return [each[name] for each in found]

    run.report.pairs(
        f"{what}: good answers", values("goodput"), values("capacity"), "capacity", unit="requests/s", target=GOODPUT
    )
    run.report.pairs(
        f"{what}: median of a refusal",
        values("refused"),
        [1.0] * len(found),
        "bound",
        unit="ms",
        target=1.0,
        less_is_better=True,
    )
    run.report.pairs(
        f"{what}: p99 of good answers",
        values("p99"),
        values("calm"),
        "p99 at 0.8 of capacity",
        unit="ms",
        target=1 / P99,
        less_is_better=True,
    )
    run.report.remark(f"{what}: offered {np.median(values('offered')) / np.median(values('capacity')):.1f}x in fact")


def sessions(run: Run) -> None:
    """Measures two sessions beside one; the number is changed while the server runs.

    Two sessions cannot use the cores that the load generator and others use. The second row has what two sessions would
    answer on all cores, where cores that were idle count against them, and what one session would answer whose process
    keeps one core busy.
    """
    world = DlrmWorld(run.work / "sessions", run.work / "weights.safetensors")
    cores = os.cpu_count() or 1
    with serving(run, "sessions", "dlrm") as served:
        for batch in (64, ITEMS):
            work = load(run, served, f"batch{batch}", [binary_body(world.request(batch)) for _ in range(20)])

            def with_sessions(count: int, work: Callable[[], Load] = work) -> Load:
                body = json.dumps({"count": count}).encode()
                post(served.http_port, "/v2/repository/models/dlrm/sessions", body, {})
                return work()

            turns = in_turns(run, {"one": partial(with_sessions, 1), "two": partial(with_sessions, 2)})
            what = f"sessions 2 over 1, batch {batch}"
            turns.report(
                run,
                f"{what}, load on the same two cores",
                lambda load: load.figures.requests,
                unit="requests/s",
                ours="two",
                against="one",
            )
            run.report.pairs(
                f"{what}, without the cores of the load",
                [load.figures.requests * cores / max(0.1, cores - load.beside_cores) for load in turns.loads["two"]],
                [1e6 / load.busiest_us for load in turns.loads["one"]],
                "one, a core busy",
                unit="requests/s",
                target=SESSIONS,
            )
            run.report.remark(f"{what}: cores that others used: {turns.others()}")
            turns.settle()


@contextlib.contextmanager
def serving(run: Run, folder: str, model: str) -> Iterator[Served]:
    """Starts a server of a folder of the run."""
    repository, store = run.work / folder, run.work / f"{folder}-store"
    with serve(run, repository, store, model, open_admin=True) as served:
        yield served


def load(run: Run, served: Served, name: str, bodies: list[tuple[bytes, int]]) -> Callable[[], Load]:
    """Returns a contestant that measures a closed loop over HTTP."""
    script = save_script(run.work / f"{name}.lua", bodies)

    def generator(served: Served) -> Figures:
        return run_wrk(served.http_port, served.model, script, connections=CONNECTIONS, seconds=1 if run.quick else 2)

    return lambda: measure_load(run, served, generator, CONNECTIONS)


def _echo_load(run: Run, port: int, body: tuple[bytes, int]) -> Contestant:
    """Returns a contestant that measures the requests a second of a closed loop of eight connections."""
    saved, result = run.work / "echo.npz", run.work / "echo.npy"
    save_bodies(saved, [body])
    seconds = 0.5 if run.quick else 2.5
    return lambda turn: max_rate(port, "ranker", saved, result, seconds)


def scores(port: int, body: tuple[bytes, int]) -> np.ndarray:
    """Returns the scores of one request for ITEMS items."""
    headers = {"Inference-Header-Content-Length": str(body[1]), "Content-Type": "application/octet-stream"}
    content = post(port, "/v2/models/ranker/infer", body[0], headers)
    return np.frombuffer(content[-4 * ITEMS :], "<f4")  # the one output, as bytes behind the JSON


def post(port: int, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Returns the body of a successful response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {content[:300]!r}")
        return content


if __name__ == "__main__":
    script("engine")
