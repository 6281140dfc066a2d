"""Claims: an event changes scores within 5 s in the median and 10 s at p99, at 5,000 events a second on two cores.

A stream of clicks is written into Kafka (the brokers that librdkafka has for tests) or Redis, `emberline update
--follow` trains on it and publishes a delta every second, a server serves the repository, and a client asks for scores
until those of users change whose first click was just written. Everything runs on this machine's cores. A user without
a row has the score of every other one without a row, in the same request; so a score that differs from theirs is the
doing of that click.

    python -m benchmarks.freshness            # about four minutes
    python -m benchmarks.freshness --quick
    python -m benchmarks.freshness --only redis
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.event_stream import NAME, Producer, Send, as_bytes, train_history
from benchmarks.peers import PeerMissingError
from storage.errors import Unavailable

PARTS = ("kafka", "redis")
QUICK_S = 90.0
P50_S, P99_S = 5.0, 10.0
EVENTS_PER_SECOND = 5_000
DELTA_EVERY_S = 1.0
HISTORY, QUICK_HISTORY = 500_000, 100_000
# Seconds of the measurement, and of the run-up before it.
SECONDS, QUICK_SECONDS, RUN_UP_S = 75.0, 15.0, 5.0
_PROBE_EVERY_S, _POLL_S = 0.37, 0.02
_FIRST_PROBE, _CONTROL = 10**9, 2 * 10**9
_WAIT_S = 60.0
_CHANGED = 1e-7


@dataclass(frozen=True)
class Probe:
    """The way of one click. Times are those of time.time()."""

    written: float
    #: When the delta with it was drawn, when it lay in the repository, when requests saw it, when the client did.
    drawn: float
    appeared: float
    served: float
    seen: float


def measure(run: Run) -> None:
    """Measures the way of events through each kind of stream."""
    trained = run.work / "trained"
    trained.mkdir()
    train_history(trained, run.size(HISTORY, QUICK_HISTORY))
    for part, brokers in (("kafka", kafka), ("redis", redis)):
        if not run.wants(part) or run.is_late(part):
            continue
        place = run.work / part
        subprocess.run(["cp", "-r", trained, place], check=True)
        try:
            with brokers(place) as (url, send):
                _measure(run, part, place, url, send)
        except PeerMissingError as error:
            run.report.remark(f"left out: {part}: {error}")


def _measure(run: Run, part: str, place: Path, url: str, send: Send) -> None:
    from tests.support.server_process import ServerProcess

    seconds = QUICK_SECONDS if run.quick else SECONDS
    with (
        ServerProcess(place / "models", place / "store", place / "server.log") as server,
        following(place, url) as metrics_url,
        Producer(send, EVENTS_PER_SECOND) as producer,
    ):
        _wait_for_deltas(place, 2)
        time.sleep(0.0 if run.quick else RUN_UP_S)
        found = _probed(server.http_port, producer, place, seconds)
        trained = _mean(metrics_url, "trained")
        committed = _mean(metrics_url, "committed")
        waiting = _sample(metrics_url, "emberline_trainer_stream_waiting")
        shown = server.metrics()
    total = [probe.seen - probe.written for probe in found]
    for share, bound in ((50, P50_S), (99, P99_S)):
        run.report.pairs(
            f"{part}, {EVENTS_PER_SECOND:,} events/s: event written to score changed, p{share}",
            [float(np.percentile(total, share))], [bound], f"{bound:g} s", unit="s", less_is_better=True, target=1.0,
            note=f"{len(total)} clicks",
        )  # fmt: skip
    steps = {
        "to drawn": [probe.drawn - probe.written for probe in found],
        "to published": [probe.appeared - probe.drawn for probe in found],
        "to served": [probe.served - probe.appeared for probe in found],
        "to seen": [probe.seen - probe.served for probe in found],
    }
    texts = (f"{name} {np.mean(s):.2f} s (p99 {np.percentile(s, 99):.2f})" for name, s in steps.items())
    run.report.remark(
        f"{part}: from the click {', '.join(texts)}; all events were trained on after {trained:.2f} s and committed "
        f"after {committed:.2f} s in the mean"
    )
    total_s, count = (
        next(value for name, value in shown.items() if name.startswith(f"emberline_freshness_seconds_{what}"))
        for what in ("sum", "count")
    )
    run.report.remark(
        f"{part}: the server counted {count:,.0f} events, served after {total_s / max(1.0, count):.2f} s in the mean; "
        f"{waiting:,.0f} waited in the stream at the end; sends were up to {producer.late_s:.2f} s late"
    )


def _probed(port: int, producer: Producer, place: Path, seconds: float) -> list[Probe]:
    """Writes first clicks of new users and asks for their scores until they change."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    open_users: list[int] = []
    seen: dict[int, tuple[float, str]] = {}
    ways: dict[str, tuple[float, float, float] | None] = {}
    began = time.monotonic()
    user = _FIRST_PROBE
    while True:
        now = time.monotonic() - began
        if now < seconds and user - _FIRST_PROBE <= now / _PROBE_EVERY_S:
            producer.click(user)
            open_users.append(user)
            user += 1
        if not open_users and now >= seconds:
            break
        if now > seconds + _WAIT_S:
            raise Unavailable(f"{len(open_users)} of {user - _FIRST_PROBE} clicks changed no score; see {place}")
        scores, snapshot = _ask(client, [_CONTROL, *open_users])
        at = time.time()
        changed = [
            each for each, score in zip(open_users, scores[1:], strict=True) if abs(score - scores[0]) > _CHANGED
        ]
        if changed and snapshot not in ways:
            ways[snapshot] = _way(place / "models" / NAME, port, snapshot)
        seen |= dict.fromkeys(changed, (at, snapshot))
        open_users = [each for each in open_users if each not in seen]
        time.sleep(_POLL_S)
    found = []
    for each, (at, snapshot) in seen.items():
        way = ways[snapshot]
        if way is not None:
            found.append(Probe(producer.written[each], *way, at))
    return found


def _ask(client: http.client.HTTPConnection, users: list[int]) -> tuple[list[float], str]:
    count = len(users)
    columns = {"user": ("INT64", users), "item": ("INT64", [7] * count), "shop": ("INT64", [7] * count)}
    inputs = [
        {"name": name, "shape": [count], "datatype": kind, "data": values} for name, (kind, values) in columns.items()
    ]
    inputs.append({"name": "price", "shape": [count], "datatype": "FP32", "data": [10.0] * count})
    client.request("POST", f"/v2/models/{NAME}/infer", json.dumps({"inputs": inputs}))
    response = client.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise Unavailable(f"the server answered {response.status}: {answer}")
    return answer["outputs"][0]["data"], answer["parameters"]["snapshot"]


def _way(models: Path, port: int, snapshot: str) -> tuple[float, float, float] | None:
    """Returns when a snapshot was drawn, appeared and was served; None when it is not known any more."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/repository/models/{NAME}/snapshots") as answer:
        known = {entry["id"]: entry for entry in json.load(answer)["snapshots"]}
    if snapshot not in known:
        return None
    entry = known[snapshot]
    version, sequence = entry["name"].split(".")
    folder = models / version
    if sequence != "0":
        folder = folder / "deltas" / f"{int(sequence):06d}"
    try:
        appeared = folder.stat().st_ctime  # a rename changes it
    except OSError:
        return None
    return entry["published_unix_ms"] / 1000, appeared, appeared + entry["visible_ms"] / 1000


@contextlib.contextmanager
def following(place: Path, url: str) -> Iterator[str]:
    """Runs `emberline update --follow` over a stream; yields the address of its metrics."""
    from tests.support.server_process import free_ports

    (port,) = free_ports(1)
    command = [sys.executable, "-m", "emberline", "update", str(place / "run"), "--follow", url]
    command += ["--repository", str(place / "models"), "--every-seconds", f"{DELTA_EVERY_S:g}"]
    command += ["--metrics-port", str(port), "--quiet"]
    with (place / "trainer.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
    try:
        yield f"http://127.0.0.1:{port}/metrics"
        if process.poll() is not None:
            raise Unavailable(f"the training ended: {(place / 'trainer.log').read_text()[-1000:]}")
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def kafka(place: Path) -> Iterator[tuple[str, Send]]:
    """Runs librdkafka's brokers; yields the URL of a topic of three partitions, and what writes into it."""
    from tests.support.kafka_brokers import KafkaBrokers

    brokers, turn = KafkaBrokers(), iter(range(1 << 40))

    def send(table: Any) -> None:
        brokers.send("clicks", [as_bytes(table)], next(turn) % 3)

    yield f"kafka://{brokers.servers}/clicks", send


@contextlib.contextmanager
def redis(place: Path) -> Iterator[tuple[str, Send]]:
    """Runs Redis; yields the URL of a stream, and what writes into it."""
    from tests.support.redis_server import RedisServer, fetch

    fetch()
    folder = place / "redis"
    folder.mkdir()
    server = RedisServer(folder)

    def send(table: Any) -> None:
        server.client.xadd("clicks", {"rows": as_bytes(table)}, maxlen=100_000)

    try:
        yield f"redis://127.0.0.1:{server.port}/0?stream=clicks&arrow=rows", send
    finally:
        server.stop()


def _wait_for_deltas(place: Path, count: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while len(list((place / "models" / NAME).glob("*/deltas/0*"))) < count:
        if time.monotonic() > deadline:
            raise Unavailable(f"no deltas within {_WAIT_S:g} s: {(place / 'trainer.log').read_text()[-1000:]}")
        time.sleep(0.1)


def _mean(url: str, at: str) -> float:
    """Returns the mean age of events at a stage of the training."""
    name = "emberline_trainer_freshness_seconds"
    return _sample(url, f'{name}_sum{{at="{at}"') / max(1.0, _sample(url, f'{name}_count{{at="{at}"'))


def _sample(url: str, name: str) -> float:
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


if __name__ == "__main__":
    script("freshness")
