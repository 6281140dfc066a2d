"""Runs perf_analyzer, the load generator of the Triton project: closed loop, HTTP or gRPC, any KServe v2 server."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generators import Figures
from benchmarks.peers import PeerMissingError
from benchmarks.peers.environment import last_line
from benchmarks.peers.triton_environment import library_path, perf_analyzer
from loadtest.rows import Tensor


def save_input_data(path: Path, rows: Sequence[Tensor]) -> None:
    """Writes the rows of tensors (n, width) as n samples; a batch takes as many of them as it has rows."""
    samples = [
        {tensor.name: {"content": tensor.values[row].tolist(), "shape": [tensor.values.shape[1]]} for tensor in rows}
        for row in range(len(rows[0].values))
    ]
    path.write_text(json.dumps({"data": samples}))


def run_perf_analyzer(
    port: int, protocol: str, model: str, data: Path, *, batch: int, concurrency: int, seconds: float, rate: int = 0
) -> Figures:
    """Measures three windows of a closed loop, `seconds` in all.

    protocol: "http" or "grpc". rate: requests a second instead of a closed loop. Raises PeerMissingError with the last
    line of its output.
    """
    result = data.with_suffix(".csv")
    result.unlink(missing_ok=True)
    command = [
        str(perf_analyzer()),
        *("-m", model, "-u", f"127.0.0.1:{port}", "-i", protocol, "-b", str(batch), "--input-data", str(data)),
        *(("--request-rate-range", str(rate)) if rate else ("--concurrency-range", str(concurrency))),
        *("-p", str(int(seconds * 1000 / 3)), "-r", "3", "-s", "999"),
        *("--percentile", "99", "-f", str(result)),
    ]
    done = subprocess.run(
        command,
        env={"LD_LIBRARY_PATH": library_path()},
        capture_output=True,
        text=True,
        timeout=60.0 + 10 * seconds,
        check=False,
    )
    if not result.exists():
        raise PeerMissingError(f"perf_analyzer: {last_line(done.stderr) or last_line(done.stdout)}")
    with result.open() as lines:
        row = next(csv.DictReader(lines))
    requests = float(row["Inferences/Second"]) / batch
    p50_us, p99_us = float(row["p50 latency"]), float(row["p99 latency"])
    return Figures(round(requests * seconds), requests, p50_us / 1000, p99_us / 1000)
