"""Runs h2load, a load generator in C for HTTP/2 (Debian's package nghttp2-client), as a gRPC client.

h2load sees HTTP's status but no trailers, and a gRPC error has status 200. It also has no data, so the bytes of data
that came show whether every answer held a message.
"""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import numpy as np

from benchmarks.generators import BadAnswersError, Figures, program

_METHOD = "inference.GRPCInferenceService/ModelInfer"
_REQUESTS = re.compile(r"requests: \d+ total, \d+ started, \d+ done, (\d+) succeeded, (\d+) failed, (\d+) errored")
_SPEED = re.compile(r"finished in [\d.]+\w+, ([\d.]+) req/s")
_DATA = re.compile(r"\((\d+)\) data")


def save_message(path: Path, message: bytes) -> Path:
    """Writes a gRPC message with its prefix, as the body of a request; returns the path."""
    path.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    return path


def answer_bytes(port: int, message: Path) -> int:
    """Sends one request; returns the bytes of data of its answer. Raises BadAnswersError if it has none."""
    printed = _run(port, message, "-n", "1", "-c", "1")
    size = _number(_DATA, printed)
    if size <= 5:
        raise BadAnswersError(f"port {port}: an answer without a message: {printed[-300:]}")
    return int(size)


def run_h2load(port: int, message: Path, *, connections: int, seconds: float, expected_bytes: int) -> Figures:
    """Sends requests over `connections`, one at a time on each, for about `seconds`, rounded to whole ones.

    expected_bytes: what a good answer has. Raises PeerMissingError without h2load, BadAnswersError if an answer was not
    2xx, did not come or had no message; those that were under way at the end are in doubt and allowed.
    """
    log = message.with_suffix(".log")
    log.unlink(missing_ok=True)
    options = ("-c", str(connections), "-m", "1", "-t", "1", "-D", str(max(1, round(seconds))))
    printed = _run(port, message, *options, f"--log-file={log}")
    found = _REQUESTS.search(printed)
    if found is None:
        raise BadAnswersError(f"h2load: {printed[-300:]}")
    answers, failed, errored = map(int, found.groups())
    messages = _number(_DATA, printed) / expected_bytes
    if failed or errored or not answers or abs(messages - answers) > connections:
        raise BadAnswersError(
            f"port {port}: {answers} answers, {messages:.1f} messages, {failed} failed, {errored} did not come"
        )
    records = np.loadtxt(log, dtype=np.int64, delimiter="\t", ndmin=2)
    if (records[:, 1] != 200).any():
        raise BadAnswersError(f"port {port}: HTTP statuses {np.unique(records[:, 1]).tolist()}")
    p50_us, p99_us = np.percentile(records[:, 2], [50, 99])
    return Figures(answers, _number(_SPEED, printed), float(p50_us) / 1000, float(p99_us) / 1000)


def _run(port: int, message: Path, *options: str) -> str:
    """Returns what h2load prints."""
    command = [
        *(str(program("h2load", "nghttp2-client")), *options, "-d", str(message)),
        *("-H", "content-type: application/grpc", "-H", "te: trailers"),  # codespell:ignore te
        f"http://127.0.0.1:{port}/{_METHOD}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def _number(pattern: re.Pattern[str], printed: str) -> float:
    found = pattern.search(printed)
    if found is None:
        raise BadAnswersError(f"h2load: {printed[-300:]}")
    return float(found[1])
