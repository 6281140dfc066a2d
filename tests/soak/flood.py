"""Floods a server from five clients without a token, and measures what a client with a token gets meanwhile.

    python -m tests.soak.flood --seconds 600 --json build/flood.json

Quiet and flood take turns. The clients have an address each (127.0.0.11 and up) and send, over HTTP and gRPC, bursts of
connections, resets, heads that are refused while their bodies never come, tiny chunks, bombs, and requests whose
answers they do not read; some of it waits where it is open to all (health). The one with a token asks the model at a
steady pace over both protocols; its times count from when a request was due, so that none hides behind another.

Exit code 0 when its p99 under the flood is at most twice the quiet one, none of its requests failed, and the server's
memory stayed within --max-inflight and what it had before.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from tests.integration.serving.guarded import serve, write_access
from tests.integration.serving.identity_models import write_identity

CLIENTS = 5
ROUNDS = 5
QUIET_SHARE = 0.25
PACE = 50.0
# Attacks a second, of each kind, by each client.
RATE = 20.0
INFLIGHT_MIB = 512.0
PATH = "/v2/models/echo/infer"
_HELD = 60
_BOMB = gzip.compress(b"[" + b"[]," * 20_000_000 + b"[]]", 9)
_SHORT_BOMB = gzip.compress(b"{}" * 4_000_000, 9)


class Attacker:
    """One attacking client, in a process of its own.

    Any of its actions may fail.
    """

    def __init__(self, address: str, http_port: int, grpc_address: str, seed: int) -> None:
        self._address = address
        self._port = http_port
        self._grpc = grpc_address
        self._rng = random.Random(seed)
        self._held: list[socket.socket] = []
        self._channel = grpc.insecure_channel(grpc_address)
        self._watched: list[Any] = []
        self.kinds: dict[str, Callable[[], None]] = {
            "burst": self._burst,
            "reset": self._reset,
            "refused head": self._refused_head,
            "tiny chunks": self._tiny_chunks,
            "bomb": self._bomb,
            "slow reader": self._slow_reader,
            "gRPC refused": self._grpc_refused,
            "gRPC reset": self._grpc_reset,
            "gRPC watch": self._grpc_watch,
        }

    def run(self, rate: float, kinds: Sequence[str], ending: Any, done: Any) -> None:
        """Makes each attack of `kinds` (none: all) `rate` times a second until `ending` is set.

        done: a queue that gets the number of attacks of each kind.
        """
        count: Counter[str] = Counter()
        due = time.monotonic()
        while not ending.is_set():
            for name in kinds or self.kinds:
                with contextlib.suppress(OSError, grpc.RpcError):
                    self.kinds[name]()
                count[name] += 1
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
            # A client that is behind does not catch up: the server has refused it for that long.
            due = max(due, time.monotonic() - 1.0)
        for end in self._held:
            end.close()
        done.put(dict(count))

    def _connect(self) -> socket.socket:
        end = socket.create_connection(("127.0.0.1", self._port), timeout=2, source_address=(self._address, 0))
        end.settimeout(0.5)
        return end

    def _hold(self, end: socket.socket) -> None:
        self._held.append(end)
        if len(self._held) > _HELD:
            self._held.pop(self._rng.randrange(len(self._held))).close()

    def _head(self, *headers: str) -> bytes:
        return "\r\n".join([f"POST {PATH} HTTP/1.1", "Host: h", *headers, "", ""]).encode()

    def _burst(self) -> None:
        for end in [self._connect() for _ in range(8)]:
            end.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"[: self._rng.randrange(46)])
            end.close()

    def _reset(self) -> None:
        end = self._connect()
        end.sendall(self._head("Content-Length: 1000000") + bytes(20_000))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()

    def _refused_head(self) -> None:
        end = self._connect()
        end.sendall(self._head(f"Authorization: Bearer {self._rng.random()}", "Content-Length: 60000000"))
        self._hold(end)

    def _tiny_chunks(self) -> None:
        end = self._connect()
        end.sendall(self._head("Transfer-Encoding: chunked") + b"2\r\n{}\r\n" * 5000)
        self._hold(end)

    def _bomb(self) -> None:
        end = self._connect()
        body = self._rng.choice((_BOMB, _SHORT_BOMB))
        end.sendall(self._head("Content-Encoding: gzip", f"Content-Length: {len(body)}") + body)
        end.close()

    def _slow_reader(self) -> None:
        end = self._connect()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n" * 100)
        self._hold(end)

    def _grpc_refused(self) -> None:
        message = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(100_000)])
        ask = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        ask(message.SerializeToString(), timeout=2)

    def _grpc_reset(self) -> None:
        ask = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for call in [ask.future(bytes(1000), timeout=2) for _ in range(5)]:
            call.cancel()

    def _grpc_watch(self) -> None:
        if len(self._watched) < 400:
            watch = health_pb2_grpc.HealthStub(self._channel).Watch(health_pb2.HealthCheckRequest())
            self._watched.append(watch)


def attack(
    number: int, http_port: int, grpc_address: str, rate: float, kinds: Sequence[str], ending: Any, done: Any
) -> None:
    """Runs one client's process at idle priority.

    It uses the processors that the server leaves idle, as a client on another machine would.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    Attacker(f"127.0.0.{11 + number}", http_port, grpc_address, number).run(rate, kinds, ending, done)


@dataclass
class Times:
    """Latencies and failures of the requests with a token.

    The times are in ms since each request was due, by phase.
    """

    times_ms: dict[str, list[float]] = field(default_factory=lambda: {"quiet": [], "flood": []})
    failures: list[str] = field(default_factory=list)


class Holder(threading.Thread):
    """Sends the requests of the client with a token, over one protocol."""

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.found = Times()
        self.phase = ""
        self.ending = threading.Event()
        self._ask = ask

    def run(self) -> None:
        """Sends requests at a steady pace, and records their times as Times describes."""
        due = time.perf_counter()
        while not self.ending.is_set():
            due += 1 / PACE
            time.sleep(max(0.0, due - time.perf_counter()))
            phase = self.phase
            try:
                self._ask()
            except Exception as error:
                self.found.failures.append(f"{phase}: {type(error).__name__} {str(error)[:200]}")
            if phase and phase == self.phase:
                self.found.times_ms[phase].append((time.perf_counter() - due) * 1e3)


def holders(http_port: int, grpc_address: str) -> dict[str, Holder]:
    """Returns one client with a token for each protocol; each checks its answers."""
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    over_http = triton_http.InferenceServerClient(f"127.0.0.1:{http_port}", network_timeout=30.0)
    over_grpc = triton_grpc.InferenceServerClient(grpc_address)

    def asker(client: Any, kit: Any, headers: dict[str, str]) -> Callable[[], None]:
        entry = kit.InferInput("in_A", [4, 4], "FP32")
        entry.set_data_from_numpy(values)

        def ask() -> None:
            got = client.infer("echo", [entry], headers=headers).as_numpy("out_A")
            if not np.array_equal(got, values):
                raise ValueError(f"another answer: {got}")

        return ask

    return {
        "http": Holder(asker(over_http, triton_http, {"Authorization": "Bearer caller"})),
        "grpc": Holder(asker(over_grpc, triton_grpc, {"authorization": "Bearer caller"})),
    }


def memory_mib(process: psutil.Process) -> float:
    """Returns the memory of a server with its supervisor, in MiB."""
    every = [process, *process.children(recursive=True)]
    return sum(each.memory_info().rss for each in every) / (1 << 20)


def run(seconds: float, rate: float, folder: Path, kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the flood and returns the figures.

    seconds: the whole time of flood.
    """
    write_identity(folder / "models", "echo", {"A": ("FP32", [4])}, max_batch=64)
    access = write_access(folder / "access.yaml")
    context = multiprocessing.get_context("spawn")
    flood_s = seconds / ROUNDS
    with serve(folder / "models", folder, "--access-file", str(access)) as server:
        process = psutil.Process(server.process.pid)
        serving = process.children()
        _wait_until_ready(server.port)
        both = holders(server.port, server.grpc)
        for holder in both.values():
            holder.start()
        time.sleep(min(5.0, flood_s))
        before = memory_mib(process)
        most, attacks = before, Counter[str]()
        for number in range(ROUNDS):
            _phase(both, "quiet", max(1.0, flood_s * QUIET_SHARE))
            ending, done = context.Event(), context.Queue()
            clients = [
                context.Process(
                    target=attack, args=(client, server.port, server.grpc, rate, kinds, ending, done), daemon=True
                )
                for client in range(CLIENTS)
            ]
            for each in clients:
                each.start()
            time.sleep(4.0)  # Waits until the clients have imported their modules.
            end = time.monotonic() + flood_s
            while time.monotonic() < end:
                _phase(both, "flood", 0.5)
                most = max(most, memory_mib(process))
            for holder in both.values():
                holder.phase = ""
            ending.set()
            for _ in clients:
                attacks.update(done.get(timeout=60))
            for each in clients:
                each.join(30)
            time.sleep(1.0)
            print(f"round {number + 1} of {ROUNDS}: {memory_mib(process):.0f} MiB", file=sys.stderr, flush=True)
        for holder in both.values():
            holder.ending.set()
            holder.join(30)
        alive = process.is_running() and process.children() == serving
    return {
        "attacks": dict(attacks),
        "memory_mib": {"before": before, "most": most},
        "is_alive": alive,
        "holders": {name: asdict(holder.found) for name, holder in both.items()},
    }


def _wait_until_ready(port: int) -> None:
    client = triton_http.InferenceServerClient(f"127.0.0.1:{port}")
    deadline = time.monotonic() + 60
    while not client.is_server_ready():
        if time.monotonic() > deadline:
            raise TimeoutError("the server is not ready after 60 s")
        time.sleep(0.05)


def _phase(both: dict[str, Holder], name: str, seconds: float) -> None:
    for holder in both.values():
        holder.phase = name
    time.sleep(seconds)
    if name == "quiet":
        for holder in both.values():
            holder.phase = ""


def verdict(found: dict[str, Any]) -> list[str]:
    """Prints the figures; returns what is not as it should be."""
    wrong = [] if found["is_alive"] else ["the server has ended"]
    print(", ".join(f"{count} x {name}" for name, count in found["attacks"].items()))
    for name, times in found["holders"].items():
        quiet, flood = (np.array(times["times_ms"][phase]) for phase in ("quiet", "flood"))
        p99s = float(np.percentile(quiet, 99)), float(np.percentile(flood, 99))
        print(
            f"{name}: p50 {np.median(quiet):.2f} ms quiet, {np.median(flood):.2f} under the flood; "
            f"p99 {p99s[0]:.2f} and {p99s[1]:.2f} ({p99s[1] / p99s[0]:.2f} times); longest {flood.max():.0f} ms; "
            f"{len(flood)} requests, {len(times['failures'])} failed"
        )
        if p99s[1] > 2 * p99s[0]:
            wrong.append(f"{name}: the p99 is {p99s[1] / p99s[0]:.2f} times the quiet one, at most 2 are wanted")
        wrong += [f"{name}: {text}" for text in times["failures"][:5]]
    memory = found["memory_mib"]
    print(f"memory: {memory['before']:.0f} MiB before, {memory['most']:.0f} at most")
    if memory["most"] > memory["before"] + INFLIGHT_MIB:
        wrong.append(f"memory grew by {memory['most'] - memory['before']:.0f} MiB, {INFLIGHT_MIB:.0f} may be in flight")
    return wrong


def main() -> int:
    """Parses the command line, runs, prints."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.flood", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="of flood, in five parts; default: 600")
    parser.add_argument(
        "--rate", type=float, default=RATE, help=f"attacks a second, client and kind; default: {RATE:g}"
    )
    parser.add_argument("--only", action="append", default=[], help="a kind of attack, instead of all; several times")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(options.seconds, options.rate, Path(folder), options.only)
    if options.json:
        options.json.write_text(json.dumps(found))
    wrong = verdict(found)
    for text in wrong:
        print(f"WRONG: {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
