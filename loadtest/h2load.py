"""Has h2load send one request over and over, over HTTP or gRPC, and reads the latencies that it logs."""

from __future__ import annotations

import re
import struct

import numpy as np

from loadtest.channel import call_once
from loadtest.counts import SecondCounts
from loadtest.program import Load, Program
from loadtest.records import PhaseRecord
from loadtest.target import Target
from storage.errors import Unavailable

# Requests under way on one connection of gRPC at most: enough that none waits for another.
_STREAMS = 100
# Seconds that the answer to one call may take.
_CALL_S = 30.0
# Bytes before each message of gRPC.
_PREFIX_BYTES = 5
# By how many bytes answers to one request may differ.
_SHORTER_BYTES = 2
_COUNTS = re.compile(
    r"requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout"
)
_DATA = re.compile(r"\((\d+)\) data")


class H2load(Program):
    """Runs h2load."""

    package = "Debian and Ubuntu have it in the package nghttp2-client"
    note = (
        "h2load sent the load: one request over and over, in bursts, because all its connections send at the same "
        "moments. It counts latency from the sending, so time in which no connection was free is left out."
    )

    def __init__(self, load: Load) -> None:
        self._load = load
        self._log, self._body = load.folder / "log", load.folder / "body"
        body, self._json_bytes = load.prepared.body(0), load.prepared.headers[0]
        if load.kind == "grpc":
            self._answer_bytes = _PREFIX_BYTES + _answer_bytes(load.target, body)
            body = struct.pack(">BI", 0, len(body)) + body
        self._body.write_bytes(body)

    def command(self, rate: float, seconds: int) -> list[str]:
        """Returns the command line."""
        load = self._load
        self._log.unlink(missing_ok=True)
        # Whole requests a second for each client: fewer clients where the rate is low.
        clients = max(1, min(load.connections, int(rate)))
        headers = [
            word for name, value in load.headers(self._json_bytes).items() for word in ("-H", f"{name}: {value}")
        ]
        streams = _STREAMS if load.kind == "grpc" else 1
        return [
            *("h2load", *([] if load.kind == "grpc" else ["--h1"]), "-c", str(clients), "-m", str(streams)),
            *("-t", str(min(load.threads, clients)), "-D", str(seconds), "--rps", f"{rate / clients:.6g}"),
            *("-d", str(self._body), *headers, f"--log-file={self._log}", f"{load.address}{load.path}"),
        ]

    def read(self, record: PhaseRecord, printed: str) -> None:
        """Reads the log: the time of sending in microseconds, the status, the latency in microseconds."""
        found = _COUNTS.search(printed)
        if found is None:
            raise Unavailable(f"h2load: {printed.strip()[-500:]}")
        is_empty = not self._log.exists() or not self._log.stat().st_size
        rows = np.empty((0, 3), np.int64) if is_empty else np.loadtxt(self._log, np.int64, delimiter="\t", ndmin=2)
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
        if self._load.kind != "grpc" or data is None or not len(good):
            return set()
        missing = len(good) - int(data[1]) / self._answer_bytes
        # Answers of another snapshot may be a little shorter, because its name is.
        if missing <= 1 + _SHORTER_BYTES * len(good) / self._answer_bytes:
            return set()
        return set(good[np.linspace(0, len(good) - 1, min(len(good), round(missing)), dtype=np.int64)].tolist())


def _answer_bytes(target: Target, body: bytes) -> int:
    """Returns the bytes of the message that answers a call. Raises Unavailable when it fails."""
    import grpc

    try:
        return len(call_once(target, body, _CALL_S))
    except grpc.RpcError as error:
        raise Unavailable(f"no answer from gRPC at {target.grpc}: {error.details()}") from None
