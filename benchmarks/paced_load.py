"""Open-loop load from a process of its own: requests at fixed times, each latency counted from the time it was due.

A closed loop sends less while the server is slow and so hides what it should show. The child prints nothing; it writes
(due time, latency, good) of every request when its standard input is closed.

    python -m benchmarks.paced_load PORT MODEL RATE BODIES RESULT
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 8
_READ_BYTES = 256 << 10
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
# due (seconds of the monotonic clock, which all processes share), latency in ms, 1 for a good answer
Record = np.dtype([("due", "f8"), ("ms", "f8"), ("good", "u1")])


@dataclass
class PacedLoad:
    """A running child. rate: requests a second; 0 sends as fast as THREADS connections can."""

    port: int
    model: str
    rate: float
    bodies: Path
    result: Path

    def start(self) -> PacedLoad:
        """Starts the child."""
        command = [sys.executable, "-m", "benchmarks.paced_load", str(self.port), self.model, str(self.rate)]
        self._process = subprocess.Popen([*command, str(self.bodies), str(self.result)], stdin=subprocess.PIPE)
        return self

    def stop(self) -> np.ndarray[Any, Any]:
        """Ends the child; its records, by due time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(timeout=60) != 0:
            raise RuntimeError(f"the load ended with {self._process.returncode}")
        return np.sort(np.load(self.result), order="due")


def save_bodies(path: Path, bodies: Sequence[tuple[bytes, int]]) -> None:
    """Keeps binary request bodies for the child."""
    blob = b"".join(body for body, _ in bodies)
    lengths = np.array([[len(body), header] for body, header in bodies], np.int64)
    np.savez(path, blob=np.frombuffer(blob, np.uint8), lengths=lengths)


def max_rate(port: int, model: str, bodies: Path, result: Path, seconds: float = 4.0) -> float:
    """Requests a second that the server answers when it always has something to do."""
    load = PacedLoad(port, model, 0.0, bodies, result).start()
    time.sleep(1.5 + seconds)
    records = load.stop()
    late = records[records["due"] > records["due"][-1] - seconds]
    return len(late) / seconds


def window(records: np.ndarray[Any, Any], start: float, end: float) -> np.ndarray[Any, Any]:
    """The records that were due in [start, end) of the monotonic clock."""
    return records[(records["due"] >= start) & (records["due"] < end)]


def load_bodies(path: Path) -> list[tuple[bytes, int]]:
    """What `save_bodies` kept."""
    saved = np.load(path)
    blob, found, at = saved["blob"].tobytes(), [], 0
    for size, header in saved["lengths"].tolist():
        found.append((blob[at : at + size], header))
        at += size
    return found


class _Connection:
    """Sends whole requests and reads whole responses, and spends as little as it can: it shares the cores."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> int:
        """The status of the response. Raises OSError; the next request goes to a new connection then."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=30)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(request)
            return self._read(self._socket)
        except OSError:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            raise

    def _read(self, end: socket.socket) -> int:
        head = b""
        while (stop := head.find(b"\r\n\r\n")) < 0:
            part = end.recv(_READ_BYTES)
            if not part:
                raise ConnectionError("the server closed the connection")
            head += part
        length = _LENGTH.search(head, 0, stop + 2)
        if length is None:
            raise ConnectionError("a response without its length")
        left = int(length[1]) - (len(head) - stop - 4)
        while left > 0:
            part = end.recv(_READ_BYTES)
            if not part:
                raise ConnectionError("the server closed the connection")
            left -= len(part)
        return int(head[9:12])


class _Sender(threading.Thread):
    def __init__(self, index: int, port: int, model: str, rate: float, bodies: list[tuple[bytes, int]]) -> None:
        super().__init__(daemon=True)
        self.records: list[tuple[float, float, int]] = []
        self.ending = threading.Event()
        self._index, self._rate = index, rate
        self._connection = _Connection(port)
        self._requests = [
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
            f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {header}\r\n\r\n".encode()
            + body
            for body, header in bodies
        ]

    def run(self) -> None:
        began = time.monotonic() + 0.5
        number = self._index
        while not self.ending.is_set():
            due = began + number / self._rate if self._rate else time.monotonic()
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            try:
                good = self._connection.ask(self._requests[number % len(self._requests)]) == 200
            except OSError:
                good = False
            self.records.append((due, (time.monotonic() - due) * 1000, good))
            number += THREADS


def main() -> None:
    """The child."""
    port, model, rate, bodies, result = sys.argv[1:]
    senders = [_Sender(index, int(port), model, float(rate), load_bodies(Path(bodies))) for index in range(THREADS)]
    for sender in senders:
        sender.start()
    sys.stdin.read()
    for sender in senders:
        sender.ending.set()
    for sender in senders:
        sender.join()
    np.save(result, np.array([record for sender in senders for record in sender.records], Record))


if __name__ == "__main__":
    main()
