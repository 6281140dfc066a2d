"""Claims: the engine beside itself: the cost of a request, an echo, one user with many items, more load than it can
answer, two sessions.

`emberline serve` and the load generator run in processes of their own and share the machine, so each figure includes
the cost of the load. Answers are compared before anything is timed.

    python -m benchmarks.engine            # about four minutes
    python -m benchmarks.engine --quick
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.echo_server import ROWS, WIDTH
from benchmarks.measure import Contestant
from benchmarks.open_load import run_load
from benchmarks.paced_load import max_rate, save_bodies
from benchmarks.processes import family
from benchmarks.ranking_world import RankingWorld
from benchmarks.stages import Stages
from loadtest.bodies import binary_body
from loadtest.rows import Tensor
from tests.support.server_process import ServerProcess, free_ports

ITEMS = 512
FRONTENDS = 1
ONCE, SESSIONS = 2.0, 1.7
OWN_CODE_US = 60.0
ECHO = 0.6
GOODPUT, P99, MAX_WAIT_MS = 0.95, 1.5, 20
_MAX_S = 90.0


def measure(run: Run) -> None:
    """Measures every claim."""
    own_code(run)
    echo(run)
    world = RankingWorld(run.work / "models", "ranker")
    config = run.work / "models" / "ranker" / "config.pbtxt"
    plain = config.read_text()
    run.report.remark(f"{FRONTENDS} front end before the engine, where nothing else is said")
    run.report.remark("load: eight connections, closed loop, in a process of its own on the same cores")
    user_side(run, world)
    overload(run, world, config, plain)
    for items in (64, ITEMS):
        if run.is_late("sessions"):
            break
        sessions(run, world, config, plain, items)


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
    """Echoes 133 kB through our HTTP front end without a model, beside a plain ASGI application."""
    rng = np.random.default_rng(1)
    body = binary_body([Tensor("values", "FP32", rng.standard_normal((ROWS, WIDTH)).astype(np.float32))])
    with _echo_server("ours") as own, _echo_server("asgi") as bare:
        for port in (own, bare):
            headers = {"Inference-Header-Content-Length": str(body[1])}
            if post(port, "/v2/models/echo/infer", body[0], headers)[-4 * WIDTH :] != body[0][-4 * WIDTH :]:
                raise RuntimeError("the echo is not what was sent")
        contestants = {"ours": load(run, own, "echo", [body]), "raw ASGI": load(run, bare, "echo", [body])}
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
    with serving(run) as port:
        for one, other in zip(once[:3], repeated[:3], strict=True):
            np.testing.assert_allclose(scores(port, one), scores(port, other), atol=1e-5)
        contestants = {
            "once": load(run, port, "once", once),
            "repeated": load(run, port, "repeated", repeated),
        }
        samples = run.interleave(contestants, max_s=_MAX_S)
    run.report.compare(f"{ITEMS} items of one user", samples, "repeated", ours="once", unit="requests/s", target=ONCE)
    run.settle(samples)


def overload(run: Run, world: RankingWorld, config: Path, plain: str) -> None:
    """Sends three times the requests that the server can answer, with a bounded wait, beside what it can answer."""
    config.write_text(plain + f'parameters {{ key: "max_wait_ms" value {{ string_value: "{MAX_WAIT_MS}" }} }}\n')
    saved, result = run.work / "overload.npz", run.work / "overload.npy"
    save_bodies(saved, world.bodies(20, ITEMS, users=1))
    seconds = 1.5 if run.quick else 4.0
    found: list[dict[str, float]] = []
    with serving(run) as port:
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

    what = f"3x overload, {ITEMS} items, waits of {MAX_WAIT_MS} ms"
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
    run.report.remark(f"overload: offered {np.median(values('offered')) / np.median(values('capacity')):.1f}x in fact")


def sessions(run: Run, world: RankingWorld, config: Path, plain: str, items: int) -> None:
    """Measures two sessions beside one; the number is changed while the server runs."""
    bodies = world.bodies(20, items, users=items)
    config.write_text(plain)
    with serving(run) as port:
        work = load(run, port, f"batch{items}", bodies)

        def with_sessions(count: int) -> Contestant:
            def measured(turn: int) -> float:
                post(port, "/v2/repository/models/ranker/sessions", json.dumps({"count": count}).encode(), {})
                return work(turn)

            return measured

        samples = run.interleave({"one": with_sessions(1), "two": with_sessions(2)}, max_s=_MAX_S)
    run.report.compare(
        f"sessions 2 over 1, batch {items}, load on the same two cores",
        samples,
        "one",
        ours="two",
        unit="requests/s",
        target=SESSIONS,
    )
    run.settle(samples)


@contextlib.contextmanager
def serving(run: Run) -> Iterator[int]:
    """Starts a server of the folder and yields its HTTP port."""
    server = ServerProcess(
        run.work / "models", run.work / "store", run.work / "serve.log", frontends=FRONTENDS, open_admin=True
    )
    with server, run.counted(*family(server.process.pid)):
        yield server.http_port


def load(run: Run, port: int, name: str, bodies: list[tuple[bytes, int]]) -> Contestant:
    """Returns a contestant that measures the requests a second of a closed loop."""
    saved, result = run.work / f"{name}.npz", run.work / f"{name}.npy"
    save_bodies(saved, bodies)
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
