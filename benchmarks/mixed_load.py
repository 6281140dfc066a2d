"""Sends every kind of request at once to one server for minutes, and checks the state of the server afterwards.

Kinds: binary, JSON, gRPC, KServe v1, a table, one user of many items; short deadlines, clients that hang up, invalid
requests; sessions are added and removed, statistics and metrics are read. Answers are compared with earlier ones. At
the end it prints requests by kind, the memory, descriptors and threads of each process over time, and what was not
released.

    python -m benchmarks.mixed_load --seconds 600
    python -m benchmarks.mixed_load --seconds 600 --flame docs/flames/server.svg     # needs py-spy
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2_grpc

from benchmarks.dlrm_world import DlrmWorld
from benchmarks.engine import post
from benchmarks.machine import machine_line
from benchmarks.ranking_world import RankingWorld
from loadtest.bodies import binary_body, grpc_request, json_body
from tests.support.server_process import ServerProcess

TIMEOUT_S = 60.0
_SAMPLE_S = 5.0
_TOLERANCE = 1e-5
CONFIG = """backend: "emberline"
dynamic_batching { priority_levels: 2 default_priority_level: 2 }
instance_group [ { kind: KIND_CPU count: 2 } ]
parameters { key: "max_wait_ms" value { string_value: "200" } }
"""


class Load:
    """Threads that send requests until `end`.

    done: answers by kind and outcome. wrong: answers that must never occur.
    """

    def __init__(self, server: ServerProcess, place: Path) -> None:
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ending = threading.Event()
        self._server = server
        self._lock = threading.Lock()
        world = DlrmWorld(place / "again", place / "again.safetensors")
        self._rows = {batch: world.request(batch) for batch in (1, 7, 64, 512)}
        ranker = RankingWorld(place / "ranker_again", "ranker")
        self._users = ranker.bodies(4, 128, users=1)
        self._rng = np.random.default_rng(7)
        self._ids = self._rng.integers(0, 20_000, (100, 1))
        self._expected = {batch: self._scores(batch, binary_body(rows)) for batch, rows in self._rows.items()}
        kinds: list[Callable[[], str]] = [
            self._binary,
            self._binary,
            self._json,
            self._grpc,
            self._v1,
            self._table,
            self._user,
            self._deadline,
            self._hang_up,
            self._mistake,
            self._operator,
        ]
        self._threads = [threading.Thread(target=self._run, args=(kind,), daemon=True) for kind in kinds]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def join(self) -> int:
        """Ends the threads; returns how many of them are stuck in a request."""
        self.ending.set()
        deadline = time.monotonic() + TIMEOUT_S + 10
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _run(self, kind: Callable[[], str]) -> None:
        name = kind.__name__.strip("_")
        while not self.ending.is_set():
            try:
                outcome = kind()
            except Exception as error:
                outcome = "failed"
                self._note(f"{name}: {type(error).__name__}: {error}")
            with self._lock:
                self.done[f"{name}: {outcome}"] += 1

    def _note(self, text: str) -> None:
        with self._lock:
            if len(self.wrong) < 20:
                self.wrong.append(text[:300])

    def _ask(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("POST", path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _scores(self, batch: int, body: tuple[bytes, int]) -> np.ndarray:
        content = post(
            self._server.http_port,
            "/v2/models/dlrm/infer",
            body[0],
            {"Inference-Header-Content-Length": str(body[1])},
        )
        return np.frombuffer(content[-4 * batch :], "<f4").copy()

    def _pick(self) -> int:
        return int(np.random.default_rng().choice(list(self._rows)))

    def _check(self, batch: int, scores: np.ndarray) -> str:
        if np.abs(scores - self._expected[batch]).max() > _TOLERANCE:
            self._note(f"another answer to {batch} rows")
            return "wrong"
        return "good"

    def _binary(self) -> str:
        batch = self._pick()
        body, length = binary_body(self._rows[batch])
        status, content = self._ask("/v2/models/dlrm/infer", body, {"Inference-Header-Content-Length": str(length)})
        if status != 200:
            return str(status)
        return self._check(batch, np.frombuffer(content[-4 * batch :], "<f4"))

    def _json(self) -> str:
        status, content = self._ask("/v2/models/dlrm/infer", json_body(self._rows[7]))
        return self._check(7, np.array(json.loads(content)["outputs"][0]["data"])) if status == 200 else str(status)

    def _v1(self) -> str:
        rows = [{tensor.name: tensor.values[row].tolist() for tensor in self._rows[7]} for row in range(7)]
        status, content = self._ask("/v1/models/dlrm:predict", json.dumps({"instances": rows}).encode())
        if status != 200:
            return str(status)
        return self._check(7, np.array(json.loads(content)["predictions"], np.float64).reshape(-1))

    def _grpc(self) -> str:
        with grpc.insecure_channel(self._server.grpc) as channel:
            infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
            for _ in range(50):
                batch = self._pick()
                try:
                    answer = infer(grpc_request("dlrm", self._rows[batch]), timeout=TIMEOUT_S)
                except grpc.RpcError as error:
                    return str(error.code().name)
                outcome = self._check(batch, np.frombuffer(answer.raw_output_contents[0], "<f4"))
                if outcome != "good":
                    return outcome
        return "50 good"

    def _table(self) -> str:
        tensor = {"name": "ids", "shape": [100, 1], "datatype": "INT64", "data": self._ids.ravel().tolist()}
        status, content = self._ask("/v2/models/dlrm.t0/infer", json.dumps({"inputs": [tensor]}).encode())
        if status != 200:
            return str(status)
        return "good" if len(json.loads(content)["outputs"][0]["data"]) == 1600 else "wrong"

    def _user(self) -> str:
        body, length = self._users[int(time.monotonic() * 1000) % len(self._users)]
        return str(self._ask("/v2/models/ranker/infer", body, {"Inference-Header-Content-Length": str(length)})[0])

    def _deadline(self) -> str:
        body = json.loads(json_body(self._rows[64]))
        body["parameters"] = {"timeout": int(np.random.default_rng().integers(100, 20_000)), "priority": 1}
        return str(self._ask("/v2/models/dlrm/infer", json.dumps(body).encode())[0])

    def _hang_up(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v2/models/dlrm/infer", json_body(self._rows[512]))
            time.sleep(0.002)
        return "gone"

    def _mistake(self) -> str:
        bodies = [b"{", b'{"inputs": []}', json_body(self._rows[1]).replace(b'"ids"', b'"idz"'), b"\xff" * 1000]
        status, _ = self._ask("/v2/models/dlrm/infer", bodies[int(time.monotonic() * 1000) % len(bodies)])
        if status not in (400, 503):  # overload is reported before a body is read
            self._note(f"a mistake was answered with {status}")
        return str(status)

    def _operator(self) -> str:
        count = int(np.random.default_rng().integers(1, 5))
        status, _ = self._ask("/v2/repository/models/dlrm/sessions", json.dumps({"count": count}).encode())
        self._server.metrics()
        self._ask("/v2/repository/index", b"")
        time.sleep(0.5)
        return str(status)


def sample(processes: dict[str, psutil.Process]) -> dict[str, tuple[float, int, int]]:
    """Returns (MiB of its own, descriptors, threads) of each process."""
    found = {}
    for name, process in processes.items():
        memory = process.memory_full_info()
        found[name] = (memory.uss / 2**20, process.num_fds(), process.num_threads())
    return found


def record(target: Path, pid: int) -> None:
    """Records half a minute of a process as a flame graph."""
    spy = shutil.which("py-spy")
    assert spy is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [spy, "record", "-p", str(pid), "-d", "30", "-r", "100", "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Runs the load and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--flame", type=Path, help="a file for a flame graph of the server")
    options = parser.parse_args()
    if options.flame and shutil.which("py-spy") is None:
        parser.error("--flame needs py-spy: pip install py-spy")
    place = Path(tempfile.mkdtemp(prefix="mixed-"))
    try:
        DlrmWorld(place / "models", place / "weights.safetensors")
        RankingWorld(place / "models", "ranker")
        (place / "models" / "dlrm" / "config.pbtxt").write_text(CONFIG)
        with ServerProcess(place / "models", place / "store", place / "log", open_admin=True) as server:
            run(server, place, options.seconds, options.flame)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run(server: ServerProcess, place: Path, seconds: float, flame: Path | None) -> None:
    """Runs one load against the server."""
    pids = {"server": server.serving_pid, "supervisor": server.process.pid}
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    load = Load(server, place)
    load.start()
    began = time.monotonic()
    samples: list[tuple[float, dict[str, tuple[float, int, int]]]] = []
    spying: threading.Thread | None = None
    while (elapsed := time.monotonic() - began) < seconds:
        samples.append((elapsed, sample(processes)))
        if flame is not None and spying is None and elapsed > seconds / 3:
            spying = threading.Thread(target=record, args=(flame, server.serving_pid))
            spying.start()
        time.sleep(min(_SAMPLE_S, max(0.1, seconds - elapsed)))
    stuck = load.join()
    if spying is not None:
        spying.join()
    time.sleep(2.0)
    samples.append((time.monotonic() - began, sample(processes)))
    print(machine_line())
    print(f"{seconds:.0f} s, {sum(load.done.values())} calls, {stuck} stuck")
    for name, count in sorted(load.done.items()):
        print(f"  {name:24} {count:8}")
    print("process, MiB of its own / descriptors / threads after")
    marks = [0.1, 0.25, 0.5, 0.75]
    picked = [min(samples, key=lambda entry, mark=mark: abs(entry[0] - mark * seconds)) for mark in marks]  # type: ignore[misc]
    print(f"  {'':12}" + "".join(f"{at:>18.0f} s" for at, _ in [*picked, samples[-1]]))
    for name in processes:
        cells = [entry[name] for _, entry in [*picked, samples[-1]]]
        print(f"  {name:12}" + "".join(f"{mib:9.0f} /{fds:4} /{threads:4}" for mib, fds, threads in cells))
    for text in load.wrong:
        print("!", text)


if __name__ == "__main__":
    main()
