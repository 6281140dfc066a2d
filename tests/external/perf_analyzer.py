"""Triton's perf_analyzer against this server: every transport and way of tensors, with and without front ends.

A figure is not the point here, and none is checked: perf_analyzer reads metadata, configuration and statistics, checks
that they fit each other, and ends with an error where they do not.

    python -m benchmarks.peers.triton_environment      # perf_analyzer, once
    python -m tests.external.perf_analyzer             # about two minutes
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.triton_environment import library_path, perf_analyzer
from tests.integration.serving.identity_models import write_identity
from tests.support.server_process import ServerProcess

SHARED = ("--shared-memory=system", "--output-shared-memory-size=4096")
WAYS = {
    "http": ((), SHARED, ("--input-tensor-format=json", "--output-tensor-format=json"), ("-a",)),
    "grpc": ((), SHARED, ("-a", "--streaming"), ("-a",)),
}
MODELS = ("numbers", "strings")


def main() -> None:
    """Prints a line for each run. Ends with 1 when one of them failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_identity(place / "models", "numbers", {"A": ("FP32", [16]), "B": ("INT64", [26])}, max_batch=64)
        write_identity(place / "models", "strings", {"A": ("BYTES", [4])}, max_batch=64)
        for frontends in (0, 2):
            with ServerProcess(
                place / "models",
                place / "store",
                place / "log",
                frontends=frontends,
                arguments=["--shared-memory", "input", "--shared-memory", "output"],
            ) as server:
                for transport, port in (("http", server.http_port), ("grpc", server.grpc_port)):
                    for model in MODELS:
                        for way in WAYS[transport]:
                            word = _run(port, transport, model, way)
                            failed += word != "passed"
                            where = f"{frontends} front ends, {transport}, {model}"
                            print(f"{where:<35} {' '.join(way) or 'plain':<65} {word}", flush=True)
    sys.exit(1 if failed else 0)


def _run(port: int, transport: str, model: str, way: tuple[str, ...]) -> str:
    """ "passed", or what was said."""
    done = subprocess.run(
        [
            *(str(perf_analyzer()), "-m", model, "-u", f"127.0.0.1:{port}", "-i", transport, "-b", "4"),
            *("--concurrency-range", "4", "-p", "500", "-r", "3", "-s", "999", "--string-length", "8", *way),
        ],
        env={"LD_LIBRARY_PATH": library_path()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 0 and "Throughput" in done.stdout:
        return "passed"
    said = [
        line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower() or "fail" in line.lower()
    ]
    return f"FAILED ({done.returncode}): {' | '.join(said[:2])}"


if __name__ == "__main__":
    main()
