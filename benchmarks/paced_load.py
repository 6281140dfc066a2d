"""Sends an open-loop load from a process of its own, at fixed times; each latency counts from the time it was due.

A closed loop sends less while the server is slow and so hides what it should show. The child prints nothing; it writes
(due time, latency, good) of every request when its standard input is closed.

    python -m benchmarks.paced_load PORT MODEL RATE BODIES RESULT WAY      # WAY: JSON, how requests are sent
"""

from __future__ import annotations

import json
import mmap
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 8
_READ_BYTES = 256 << 10
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
# due: seconds of the monotonic clock, which all processes share; latency in ms; 1 for a good answer.
Record = np.dtype([("due", "f8"), ("ms", "f8"), ("good", "u1")])


@dataclass(frozen=True)
class Way:
    """The way in which requests are sent."""

    #: File of the certificates that the server's is checked against, over TLS; "": no TLS.
    ca: str = ""
    #: Token that is sent with each request; "": none.
    token: str = ""
    #: Bytes of each output by name. With any, inputs and outputs lie in shared memory: the client writes the inputs
    #: before each request and reads the outputs after it, as a real client would have to.
    outputs: dict[str, int] = field(default_factory=dict)


PLAIN = Way()


@dataclass
class PacedLoad:
    """A running child. rate: requests a second; 0 sends as fast as THREADS connections can."""

    port: int
    model: str
    rate: float
    bodies: Path
    result: Path
    way: Way = PLAIN

    def start(self) -> PacedLoad:
        """Starts the child; returns self."""
        command = [sys.executable, "-m", "benchmarks.paced_load", str(self.port), self.model, str(self.rate)]
        self._process = subprocess.Popen(
            [*command, str(self.bodies), str(self.result), json.dumps(asdict(self.way))], stdin=subprocess.PIPE
        )
        return self

    @property
    def pid(self) -> int:
        """Returns the id of the child."""
        return self._process.pid

    def stop(self) -> np.ndarray[Any, Any]:
        """Ends the child; returns its records, ordered by due time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(timeout=60) != 0:
            raise RuntimeError(f"the load ended with {self._process.returncode}")
        return np.sort(np.load(self.result), order="due")


def save_bodies(path: Path, bodies: Sequence[tuple[bytes, int]]) -> None:
    """Saves binary request bodies for the child."""
    blob = b"".join(body for body, _ in bodies)
    lengths = np.array([[len(body), header] for body, header in bodies], np.int64)
    np.savez(path, blob=np.frombuffer(blob, np.uint8), lengths=lengths)


def max_rate(port: int, model: str, bodies: Path, result: Path, seconds: float = 4.0, way: Way = PLAIN) -> float:
    """Returns the good answers a second of a server that is always busy. Raises RuntimeError for any other answer."""
    load = PacedLoad(port, model, 0.0, bodies, result, way).start()
    time.sleep(1.5 + seconds)
    records = load.stop()
    if not records["good"].all():
        raise RuntimeError(f"{np.count_nonzero(records['good'] == 0)} of {len(records)} answers were not good")
    late = records[records["due"] > records["due"][-1] - seconds]
    return len(late) / seconds


def window(records: np.ndarray[Any, Any], start: float, end: float) -> np.ndarray[Any, Any]:
    """Returns the records that were due in [start, end) of the monotonic clock."""
    return records[(records["due"] >= start) & (records["due"] < end)]


def load_bodies(path: Path) -> list[tuple[bytes, int]]:
    """Returns the bodies and header lengths that `save_bodies` wrote."""
    saved = np.load(path)
    blob, found, at = saved["blob"].tobytes(), [], 0
    for size, header in saved["lengths"].tolist():
        found.append((blob[at : at + size], header))
        at += size
    return found


class _Connection:
    """Sends whole requests and reads whole responses with little processor time, since it shares the server's cores."""

    def __init__(self, port: int, ca: str) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=ca) if ca else None
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> int:
        """Sends a request; returns the status of the response.

        Raises OSError; the next request then uses a new connection.
        """
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=30)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    self._socket = self._tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
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


class _Segment:
    """The shared memory of one connection: the inputs of a request, and its outputs behind them."""

    def __init__(self, name: str, bodies: list[tuple[bytes, int]], outputs: dict[str, int]) -> None:
        self.name = name
        self._inputs = max(len(body) - header for body, header in bodies)
        self._outputs = outputs
        self.size = self._inputs + sum(outputs.values())
        self._path = Path("/dev/shm", name)
        self._path.write_bytes(bytes(self.size))
        with self._path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), self.size)

    def head(self, body: bytes, header: int) -> bytes:
        """Returns the JSON of a request whose tensors lie in this segment."""
        content = json.loads(body[:header])
        at = 0
        for entry in content["inputs"]:
            size = entry["parameters"].pop("binary_data_size")
            entry["parameters"] |= self._part(at, size)
            at += size
        at = self._inputs
        content["outputs"] = []
        for name, size in self._outputs.items():
            content["outputs"].append({"name": name, "parameters": self._part(at, size)})
            at += size
        content.pop("parameters", None)
        return json.dumps(content).encode()

    def write(self, tensors: bytes) -> None:
        """Writes the inputs of the next request."""
        self._mapped[: len(tensors)] = tensors

    def read(self) -> bytes:
        """Returns the outputs of the last request."""
        return self._mapped[self._inputs :]

    def close(self) -> None:
        """Removes the segment."""
        self._path.unlink()

    def _part(self, offset: int, size: int) -> dict[str, Any]:
        return {
            "shared_memory_region": self.name,
            "shared_memory_offset": offset,
            "shared_memory_byte_size": size,
        }


class _Sender(threading.Thread):
    def __init__(
        self, index: int, port: int, model: str, rate: float, bodies: list[tuple[bytes, int]], way: Way
    ) -> None:
        super().__init__(daemon=True)
        self.records: list[tuple[float, float, int]] = []
        self.ending = threading.Event()
        self._index, self._rate = index, rate
        self._connection = _Connection(port, way.ca)
        self._token = f"Authorization: Bearer {way.token}\r\n" if way.token else ""
        self._host = f"Host: 127.0.0.1:{port}\r\n"
        self._segment: _Segment | None = None
        self._tensors: list[bytes] = []
        if way.outputs:
            self._tensors = [body[header:] for body, header in bodies]
            self._segment = segment = _Segment(f"emberline-load-{os.getpid()}-{index}", bodies, way.outputs)
            bodies = [(head, len(head)) for head in (segment.head(body, header) for body, header in bodies)]
            said = json.dumps({"key": segment.name, "byte_size": segment.size}).encode()
            register = f"/v2/systemsharedmemory/region/{segment.name}/register"
            if self._connection.ask(self._request(register, said, "")) != 200:
                segment.close()
                raise RuntimeError(f"{register}: refused")
        self._requests = [
            self._request(
                f"/v2/models/{model}/infer",
                body,
                f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {header}\r\n",
            )
            for body, header in bodies
        ]

    def _request(self, path: str, body: bytes, headers: str) -> bytes:
        lines = f"POST {path} HTTP/1.1\r\n{self._host}{self._token}Content-Length: {len(body)}\r\n{headers}\r\n"
        return lines.encode() + body

    def _ask(self, number: int) -> bool:
        place = number % len(self._requests)
        if self._segment is not None:
            self._segment.write(self._tensors[place])
        good = self._connection.ask(self._requests[place]) == 200
        if self._segment is not None:
            self._segment.read()
        return good

    def close(self) -> None:
        """Removes its shared memory."""
        if self._segment is None:
            return
        try:
            unregister = f"/v2/systemsharedmemory/region/{self._segment.name}/unregister"
            self._connection.ask(self._request(unregister, b"", ""))
        finally:
            self._segment.close()

    def run(self) -> None:
        began = time.monotonic() + 0.5
        number = self._index
        while not self.ending.is_set():
            due = began + number / self._rate if self._rate else time.monotonic()
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            try:
                good = self._ask(number)
            except OSError:
                good = False
            self.records.append((due, (time.monotonic() - due) * 1000, good))
            number += THREADS


def main() -> None:
    """Runs the child process."""
    port, model, rate, saved, result, way = sys.argv[1:]
    bodies, travels = load_bodies(Path(saved)), Way(**json.loads(way))
    senders = [_Sender(index, int(port), model, float(rate), bodies, travels) for index in range(THREADS)]
    for sender in senders:
        sender.start()
    sys.stdin.read()
    for sender in senders:
        sender.ending.set()
    for sender in senders:
        sender.join()
        sender.close()
    np.save(result, np.array([record for sender in senders for record in sender.records], Record))


if __name__ == "__main__":
    main()
