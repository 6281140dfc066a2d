"""Sends load with programs that others wrote in C, where the cost of a generator in Python would show.

h2load (Debian's package nghttp2-client) sends one request over and over, over HTTP or gRPC, and logs each latency. wrk2
(https://github.com/giltene/wrk2, which no package index has) sends all requests, over HTTP. Both send constant rates.
"""

from __future__ import annotations

import math
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np

from loadtest.channel import INFER, call_once
from loadtest.counts import SecondCounts
from loadtest.drivers import Watch
from loadtest.phases import Phase
from loadtest.prepared import Prepared
from loadtest.records import PhaseRecord
from loadtest.target import Target
from loadtest.wrk_requests import wrk_requests
from storage.errors import ConfigError, Unavailable

#: The generators and what each needs to be installed.
PACKAGES = {
    "h2load": "Debian and Ubuntu have it in the package nghttp2-client",
    "wrk2": "build it from https://github.com/giltene/wrk2 and put it into PATH under the name wrk2",
}
_CONTENT_TYPES = {
    "http_binary": "application/octet-stream",
    "http_json": "application/json",
    "grpc": "application/grpc",
}
# Seconds that a program may take beyond the phase.
_GRACE_S = 60.0
# Requests under way on one connection of gRPC at most: enough that none waits for another.
_STREAMS = 100
# Seconds that the answer to one call may take.
_CALL_S = 30.0
# Quantiles that wrk2 prints, from which its latencies are made again.
_QUANTILES = 1000
_WRK2_BODIES = 2000
# Bytes before each message of gRPC.
_PREFIX_BYTES = 5
# By how many bytes answers to one request may differ.
_SHORTER_BYTES = 2
_COUNTS = re.compile(
    r"requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout"
)
_DATA = re.compile(r"\((\d+)\) data")


def check_generator(name: str, kind: str, phases: Sequence[Phase]) -> None:
    """Raises ConfigError for a program that is not installed or does not send this kind of request or these phases."""
    if shutil.which(name) is None:
        raise ConfigError(f"--generator: there is no program {name}; {PACKAGES[name]}", field="generator")
    if name == "wrk2" and kind == "grpc":
        raise ConfigError("--generator: wrk2 speaks no gRPC; use h2load or --kinds http_binary", field="generator")
    for phase in phases:
        if phase.rate is None or phase.rate[0] != phase.rate[1]:
            raise ConfigError(
                f"--generator: {name} sends constant rates only, got {phase.title}; give steps, or use locust",
                field="generator",
            )


class CompiledDriver:
    """Runs one of the programs for each phase. folder: an empty one for its files."""

    def __init__(
        self, name: str, kind: str, target: Target, prepared: Prepared, folder: Path, *, connections: int, threads: int
    ) -> None:
        self._name, self._kind, self._target, self._folder = name, kind, target, folder
        self._connections, self._threads = connections, min(threads, connections)
        self._numbers = 0
        if target.tls.ca or target.tls.cert:
            raise ConfigError(f"--generator: {name} takes no --ca and no --cert", field="generator")
        bodies = [(prepared.body(place), prepared.headers[place]) for place in range(min(prepared.count, _WRK2_BODIES))]
        if name == "h2load":
            self._save_first(bodies[0])
        else:
            self._save_script(bodies)

    def __enter__(self) -> CompiledDriver:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self) -> str:
        """Returns what a reader has to know of these figures."""
        if self._name == "wrk2":
            return f"wrk2 sent the load. It tells latencies by {_QUANTILES} quantiles, and none over time."
        return (
            "h2load sent the load: one request over and over, in bursts, because all its connections send at the same "
            "moments. It counts latency from the sending, so time in which no connection was free is left out."
        )

    def run(self, phase: Phase, *, seed: int | None, drain_s: float, watch: Watch) -> PhaseRecord:
        """Sends a phase and returns what was measured. seed: ignored, the programs send at equal gaps.

        Ctrl-C ends the program, and the record holds nothing. Raises Unavailable when it fails.
        """
        self._numbers += 1
        assert phase.rate is not None
        rate, seconds = phase.rate[0], max(1, round(phase.seconds))
        record = PhaseRecord(phase, self._numbers, time.monotonic(), lasted=float(seconds))
        command = self._h2load(rate, seconds) if self._name == "h2load" else self._wrk2(rate, seconds)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            printed = _wait(process, seconds + _GRACE_S, lambda: watch(record))
        except KeyboardInterrupt:
            record.interrupted, record.lasted = True, time.monotonic() - record.began
            return record
        if process.returncode:
            raise Unavailable(f"{self._name} ended with {process.returncode}: {printed.strip()[-500:]}")
        if self._name == "h2load":
            self._read_log(record, printed)
        else:
            self._read_figures(record, printed)
        return record

    def _headers(self, json_bytes: int) -> dict[str, str]:
        headers = {"Content-Type": _CONTENT_TYPES[self._kind]}
        if json_bytes:
            headers["Inference-Header-Content-Length"] = str(json_bytes)
        if self._kind == "grpc":
            headers["te"] = "trailers"  # codespell:ignore te
        if self._target.token:
            headers["Authorization"] = f"Bearer {self._target.token}"
        return headers

    def _path(self) -> str:
        return INFER if self._kind == "grpc" else f"/v2/models/{quote(self._target.model, safe='')}/infer"

    def _address(self) -> str:
        scheme = urlsplit(self._target.url).scheme
        return f"{scheme}://{self._target.grpc}" if self._kind == "grpc" else self._target.url.rstrip("/")

    def _save_first(self, request: tuple[bytes, int]) -> None:
        body, self._json_bytes = request
        if self._kind == "grpc":
            self._answer_bytes = _PREFIX_BYTES + _answer_bytes(self._target, body)
            body = struct.pack(">BI", 0, len(body)) + body
        (self._folder / "body").write_bytes(body)

    def _h2load(self, rate: float, seconds: int) -> list[str]:
        log = self._folder / "log"
        log.unlink(missing_ok=True)
        # Whole requests a second for each client: fewer clients where the rate is low.
        clients = max(1, min(self._connections, int(rate)))
        headers = [
            word for name, value in self._headers(self._json_bytes).items() for word in ("-H", f"{name}: {value}")
        ]
        streams = _STREAMS if self._kind == "grpc" else 1
        return [
            *("h2load", *([] if self._kind == "grpc" else ["--h1"]), "-c", str(clients), "-m", str(streams)),
            *("-t", str(min(self._threads, clients)), "-D", str(seconds), "--rps", f"{rate / clients:.6g}"),
            *("-d", str(self._folder / "body"), *headers, f"--log-file={log}", f"{self._address()}{self._path()}"),
        ]

    def _read_log(self, record: PhaseRecord, printed: str) -> None:
        """Reads h2load's log: the time of sending in microseconds, the status, the latency in microseconds."""
        found = _COUNTS.search(printed)
        if found is None:
            raise Unavailable(f"h2load: {printed.strip()[-500:]}")
        log = self._folder / "log"
        is_empty = not log.exists() or not log.stat().st_size
        rows = np.empty((0, 3), np.int64) if is_empty else np.loadtxt(log, np.int64, delimiter="\t", ndmin=2)
        first = int(rows[:, 0].min()) if len(rows) else 0
        counts: dict[int, SecondCounts] = {}
        without_message = self._without_message(rows[:, 1], printed)
        for number, (sent, status, latency) in enumerate(rows.tolist()):
            each = counts.setdefault(int((sent - first) / 1e6), SecondCounts())
            if number in without_message:
                each.failed += 1
                each.add_error("an error of gRPC, of which h2load tells no more")
            elif status == 200:
                each.latency.add(latency / 1000)
                counts.setdefault(int((sent - first + latency) / 1e6), SecondCounts()).answered += 1
            else:
                each.failed += 1
                each.add_error(f"status {status}")
        lost = int(found[6]) + int(found[7])
        if lost:
            each = counts.setdefault(0, SecondCounts())
            each.failed += lost
            each.add_error("h2load: an error of the connection, or no answer in time", lost)
        for second, each in counts.items():
            record.add(second, each)

    def _without_message(self, statuses: np.ndarray, printed: str) -> set[int]:
        """Returns which answers count as errors of gRPC, whose HTTP status is 200: evenly spread ones of the log.

        h2load shows no trailers, but such an answer has no data, so the bytes that came say how many there are.
        """
        good = np.flatnonzero(statuses == 200)
        data = _DATA.search(printed)
        if self._kind != "grpc" or data is None or not len(good):
            return set()
        missing = len(good) - int(data[1]) / self._answer_bytes
        # Answers of another snapshot may be a little shorter, because its name is.
        if missing <= 1 + _SHORTER_BYTES * len(good) / self._answer_bytes:
            return set()
        return set(good[np.linspace(0, len(good) - 1, min(len(good), round(missing)), dtype=np.int64)].tolist())

    def _save_script(self, bodies: Sequence[tuple[bytes, int]]) -> None:
        requests = wrk_requests(bodies, self._headers(0), self._folder / "body")
        text = requests + _DONE.format(quantiles=_QUANTILES)
        (self._folder / "script.lua").write_text(text, encoding="utf-8")

    def _wrk2(self, rate: float, seconds: int) -> list[str]:
        return [
            *(
                "wrk2",
                f"-t{self._threads}",
                f"-c{self._connections}",
                f"-d{seconds}s",
                f"-R{rate:.6g}",
                "--timeout",
                "30s",
            ),
            *("-s", str(self._folder / "script.lua"), f"{self._address()}{self._path()}"),
        ]

    def _read_figures(self, record: PhaseRecord, printed: str) -> None:
        lines: Mapping[str, list[str]] = {
            line.split()[0]: line.split()[1:]
            for line in printed.splitlines()
            if line.startswith(("figures ", "times "))
        }
        if set(lines) != {"figures", "times"}:
            raise Unavailable(f"wrk2: {printed.strip()[-500:]}")
        answers, took_us, status, lost = map(float, lines["figures"])
        counts = SecondCounts()
        times = [float(each) / 1000 for each in lines["times"]]
        good = int(answers - status)
        for number, milliseconds in enumerate(times):
            counts.latency.add(milliseconds, good * (number + 1) // len(times) - good * number // len(times))
        counts.failed, counts.answered = int(status + lost), good
        if counts.failed:
            counts.add_error(
                "wrk2: a status that is not 2xx, an error of the connection, or no answer in time", counts.failed
            )
        record.lasted = took_us / 1e6
        record.width = max(1, math.ceil(record.lasted))  # one stretch, because there are no figures over time
        record.add(0, counts)


def _answer_bytes(target: Target, body: bytes) -> int:
    """Returns the bytes of the message that answers a call. Raises Unavailable when it fails."""
    import grpc

    try:
        return len(call_once(target, body, _CALL_S))
    except grpc.RpcError as error:
        raise Unavailable(f"no answer from gRPC at {target.grpc}: {error.details()}") from None


def _wait(process: subprocess.Popen[str], seconds: float, show: Callable[[], object]) -> str:
    """Returns what a process prints. Kills it when it takes too long, or at Ctrl-C."""
    until = time.monotonic() + seconds
    try:
        while True:
            try:
                return process.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                if time.monotonic() > until:
                    raise Unavailable(f"the load generator has not ended after {seconds:.0f} s") from None
                show()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


_DONE = """
function done(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    "figures %d %d %d %d\\n", summary.requests, summary.duration, failed.status,
    failed.connect + failed.read + failed.write + failed.timeout
  ))
  io.write("times")
  for number = 1, {quantiles} do
    io.write(string.format(" %.1f", latency:percentile((number - 0.5) * 100 / {quantiles})))
  end
  io.write("\\n")
end
"""
