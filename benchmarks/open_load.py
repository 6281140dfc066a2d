"""Sends an open-loop load over many connections, from a process of its own: more than a server can answer.

The sending is native code, which costs less than what is measured. A request that finds no free connection waits for
one.

python -m benchmarks.open_load PORT MODEL RATE SECONDS BODIES RESULT     # RATE 0: CALM connections in a closed loop
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._limits import open_load
from benchmarks.paced_load import load_bodies

CONNECTIONS, CALM = 64, 4
# sent: when it was sent, in seconds from the start; latency in ms; HTTP status.
Record = np.dtype([("sent", "f8"), ("ms", "f8"), ("status", "i4")])


def run_load(port: int, model: str, rate: float, seconds: float, bodies: Path, result: Path) -> np.ndarray[Any, Any]:
    """Sends `rate` requests a second for `seconds`; returns their records.

    With rate 0 it sends as fast as CALM connections are answered.
    """
    words = [str(word) for word in (port, model, rate, seconds, bodies, result)]
    subprocess.run([sys.executable, "-m", "benchmarks.open_load", *words], check=True, timeout=seconds + 60)
    records: np.ndarray[Any, Any] = np.load(result)
    return records


def _request(model: str, body: bytes, header: int) -> bytes:
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(body)}",
        f"Inference-Header-Content-Length: {header}",
        "Content-Type: application/octet-stream",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def main() -> None:
    """Runs the child process."""
    port, model, rate, seconds, bodies, result = sys.argv[1:]
    requests = [_request(model, body, header) for body, header in load_bodies(Path(bodies))]
    connections = CONNECTIONS if float(rate) else CALM
    records = open_load(int(port), requests, rate=float(rate), seconds=float(seconds), connections=connections)
    np.save(result, np.array(records, Record))


if __name__ == "__main__":
    main()
