"""Does an installed wheel work? Needs the wheel and its dependencies only, not the repository.

    python tests/wheel/smoke.py

Imports every package, publishes a tiny module, serves it with the installed command, asks for one prediction over HTTP
and one over gRPC, and loads the console. Ends with 1 when a score differs from torch's or when a package comes from a
source checkout.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from pathlib import Path

PACKAGES = ("emberline", "serving", "storage", "storage._features", "storage._table", "trainer", "loadtest")
START_TIMEOUT_S = 120.0
TOLERANCE = 1e-5


def check_imports() -> None:
    """Every package comes from the installation, with the kernels' sources beside them."""
    # This script's own folder must not be on the path, or a checkout could stand in for a file that the wheel lacks.
    sys.path[:] = [entry for entry in sys.path if entry not in {"", str(Path(__file__).parent)}]
    site = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    for name in PACKAGES:
        origin = importlib.import_module(name).__file__
        assert origin is not None, f"{name} has no file"
        assert site & set(Path(origin).resolve().parents), f"{name} was imported from {origin}, not from {site}"
    import storage

    assert list((Path(storage.__path__[0]) / "cuda").glob("*.cu")), "the wheel lacks the sources of the CUDA kernels"


def publish(repository: Path) -> tuple[list[list[int]], float]:
    """Publishes a module with one embedding table; returns a row of ids and the score that torch computes for it."""
    import torch

    import emberline

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = torch.nn.EmbeddingBag(100, 8, mode="sum")
            self.head = torch.nn.Linear(8, 1)

        def forward(self, items: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.head(self.items(items)))

    torch.manual_seed(1)
    module = Tiny()
    emberline.publish(module, {"items": torch.randint(0, 100, (16, 4))}, repository, name="tiny")
    ids = [[1, 2, 3, 99]]
    with torch.no_grad():
        return ids, float(module(torch.tensor(ids))[0, 0])


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for entry in sockets:
            entry.bind(("127.0.0.1", 0))
        return [int(entry.getsockname()[1]) for entry in sockets]


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Returns when the server answers that it is ready. Raises RuntimeError when it ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"the server was not ready after {START_TIMEOUT_S:g} s")


def score_over_http(url: str, ids: list[list[int]]) -> float:
    """One KServe v2 request as JSON."""
    tensor = {"name": "items", "shape": [1, len(ids[0])], "datatype": "INT64", "data": ids[0]}
    request = urllib.request.Request(
        f"{url}/v2/models/tiny/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return float(json.load(answer)["outputs"][0]["data"][0])


def score_over_grpc(address: str, ids: list[list[int]]) -> float:
    """One request of tritonclient, which the wheel depends on."""
    import numpy as np
    import tritonclient.grpc as triton

    items = triton.InferInput("items", [1, len(ids[0])], "INT64")
    items.set_data_from_numpy(np.array(ids, np.int64))
    with triton.InferenceServerClient(address) as client:
        result = client.infer("tiny", [items], client_timeout=30.0)
        name = result.get_response().outputs[0].name
        return float(result.as_numpy(name)[0, 0])


def check_console(url: str) -> None:
    """The page of the console and all files that it names are in the wheel."""
    with urllib.request.urlopen(f"{url}/console", timeout=30) as answer:
        page = answer.read().decode()
    files = re.findall(r'(?:src|href)="(console/[^"]+)"', page)
    assert len(files) > 5, f"the page of the console names {files} only"
    for file in files:
        urllib.request.urlopen(f"{url}/{file}", timeout=30).close()


def main() -> None:
    check_imports()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        ids, expected = publish(folder / "models")
        http, grpc, metrics = free_ports(3)
        command = [
            *(str(Path(sysconfig.get_path("scripts")) / "emberline"), "serve"),
            *("--model-repository", "models", "--store", "store"),
            *("--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)),
        ]
        server = subprocess.Popen(command)
        try:
            wait_until_ready(server, f"http://127.0.0.1:{http}")
            scores = {
                "HTTP": score_over_http(f"http://127.0.0.1:{http}", ids),
                "gRPC": score_over_grpc(f"127.0.0.1:{grpc}", ids),
            }
            check_console(f"http://127.0.0.1:{metrics}")
            server.terminate()
            code = server.wait(timeout=60)
        finally:
            server.kill()
            server.wait()
    assert code == 0, f"the server ended with {code} when it was asked to stop"
    for protocol, score in scores.items():
        assert abs(score - expected) < TOLERANCE, f"{protocol}: expected {expected}, got {score}"
    print(f"the wheel works: {expected:.6f} from torch, {scores['HTTP']:.6f} over HTTP, {scores['gRPC']:.6f} over gRPC")


if __name__ == "__main__":
    main()
