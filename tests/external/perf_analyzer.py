"""Triton's perf_analyzer against this server: every transport, form of tensors and kind of load, with and without front
ends.

A figure is not the point here, and none is checked: perf_analyzer reads metadata, configuration, statistics and
metrics, checks that they fit each other, and ends with an error where they do not.

    python -m benchmarks.peers.triton_environment      # perf_analyzer, once
    python -m tests.external.perf_analyzer             # about five minutes
"""

from __future__ import annotations

import contextlib
import http.server
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.dlrm_world import DlrmWorld
from benchmarks.generators.perf_analyzer import save_input_data
from benchmarks.peers.triton_environment import library_path, perf_analyzer
from serving.http.prometheus import encode, family
from tests.integration.serving.identity_models import write_identity
from tests.support.server_process import ServerProcess

# Its segments are called like the tensors. It makes random values, those of ids.valid and dense.valid too, because it
# knows no optional inputs in shared memory.
SHARED = ("--shared-memory=system", "--output-shared-memory-size=4096")
PREFIXES = ("ids", "dense", "score", "A", "in", "out")
JSON = ("--input-tensor-format=json", "--output-tensor-format=json")
CLOSED = ("--concurrency-range", "4")
WAYS = {
    "http": (("--sync",), ("-a",), ("--sync", *JSON), ("--sync", *SHARED), ("-a", *SHARED)),
    "grpc": (("--sync",), ("-a",), ("-a", "--streaming"), ("--sync", *SHARED), ("-a", "--streaming", *SHARED)),
}
LOADS = (
    (),
    ("--concurrency-range", "1:8:4"),
    ("--request-rate-range", "50"),
    ("--request-rate-range", "50:100:50", "-a"),
    ("--request-rate-range", "50", "--request-distribution", "poisson"),
    ("--request-count", "100", *CLOSED),
    ("--measurement-mode", "count_windows", "--measurement-request-count", "100", *CLOSED),
)
# What it reads from the page of metrics; a machine without a GPU has none of them, with Triton or with this server.
GPU_METRICS = {
    "nv_gpu_utilization": 0.25,
    "nv_gpu_power_usage": 71.5,
    "nv_gpu_memory_used_bytes": 3.0 * 2**30,
    "nv_gpu_memory_total_bytes": 80.0 * 2**30,
}


def main() -> None:
    """Prints a line for each run. Ends with 1 when one of them failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        world = DlrmWorld(place / "models", place / "weights.safetensors")
        write_identity(place / "models", "strings", {"A": ("BYTES", [4])}, max_batch=64)
        data = place / "data.json"
        save_input_data(data, world.request(128))
        with gpu_metrics() as url, serving(place) as server:
            for transport, port in (("http", server.http_port), ("grpc", server.grpc_port)):
                for model, options in runs(transport, data, url):
                    word = _run(port, transport, model, options)
                    failed += word != "passed"
                    said = " ".join(word for word in options if word not in (str(data), "--input-data"))
                    print(f"{transport}, {model}: {said}: {word}", flush=True)
    sys.exit(1 if failed else 0)


def serving(place: Path) -> ServerProcess:
    """Starts a server that allows the segments of perf_analyzer."""
    allowed = [word for prefix in PREFIXES for word in ("--shared-memory", prefix)]
    return ServerProcess(place / "models", place / "store", place / "log", arguments=allowed)


def runs(transport: str, data: Path, metrics_url: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields models and options of perf_analyzer."""
    for way in WAYS[transport]:
        given = () if "--shared-memory=system" in way else ("--input-data", str(data))
        for batch in ("1", "64"):
            yield "dlrm", ("-b", batch, *CLOSED, *way, *given)
        yield "strings", ("-b", "4", *CLOSED, *way, "--string-length", "8")
    for load in LOADS:
        yield "dlrm", ("-b", "1", *load, "--input-data", str(data))
    metrics = ("--collect-metrics", "--metrics-url", metrics_url, "--metrics-interval", "100")
    yield "dlrm", ("-b", "1", *CLOSED, *metrics, "--input-data", str(data))


@contextlib.contextmanager
def gpu_metrics() -> Iterator[str]:
    """Serves metrics of a GPU as this server writes them; yields their address."""
    of = {"gpu_uuid": "GPU-5e4f0b1c-0000-4000-8000-000000000001"}
    families = [family(name, "gauge", "A metric of a GPU", [(of, value)]) for name, value in GPU_METRICS.items()]

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, content_type = encode(lambda: families, self.headers.get("Accept", ""))
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def _run(port: int, transport: str, model: str, options: tuple[str, ...]) -> str:
    """ "passed", or what was said."""
    done = subprocess.run(
        [
            *(str(perf_analyzer()), "-m", model, "-u", f"127.0.0.1:{port}", "-i", transport),
            *("-p", "400", "-r", "3", "-s", "999", *options),
        ],
        env={"LD_LIBRARY_PATH": library_path()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    printed = (done.stdout + done.stderr).splitlines()
    if done.returncode == 0 and "Throughput" in done.stdout and not any("Unable to parse" in line for line in printed):
        return "passed"
    said = [line for line in printed if any(word in line.lower() for word in ("error", "fail", "unable"))]
    return f"FAILED ({done.returncode}): {' | '.join(said[:2])}"


if __name__ == "__main__":
    main()
