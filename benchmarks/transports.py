"""Claims: the cost of the server's transports: shared memory beside sent bytes, tokens and TLS beside neither.

Servers and load run in processes of their own on the same cores, so each figure includes the cost of the load. The load
writes its inputs into shared memory before each request and reads its outputs after it.

    python -m benchmarks.transports            # about eight minutes
    python -m benchmarks.transports --quick
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.measure import Contestant
from benchmarks.paced_load import PLAIN, Way, max_rate, save_bodies
from benchmarks.processes import family
from loadtest.bodies import binary_body
from loadtest.rows import Tensor
from tests.support.server_process import ServerProcess

ROWS, BYTES_A_ROW = 512, 260
SHARED, GUARDED, TOKEN = 1.3, 1 / 1.3, 0.95
_MAX_S = 120.0


def measure(run: Run) -> None:
    """Measures every claim."""
    world = DlrmWorld(run.work / "models", run.work / "weights.safetensors")
    _identity(run.work / "models" / "identity")
    shared_memory(run, world)
    if not run.is_late("tokens and TLS"):
        guarded(run, world)


def shared_memory(run: Run, world: DlrmWorld) -> None:
    """Compares inputs and outputs in shared memory with the same in bodies."""
    rows = world.request(ROWS)
    flat = np.zeros((ROWS, BYTES_A_ROW // 4), np.float32)
    bodies = {"dlrm": rows, "identity": [Tensor("x", "FP32", flat)]}
    outputs = {"dlrm": {"score": 4 * ROWS}, "identity": {"y": flat.nbytes}}
    with _serving(run, "--shared-memory", "emberline-load-") as server:
        for model, tensors in bodies.items():
            contestants = {
                "shared memory": _load(run, server, model, tensors, Way(outputs=outputs[model])),
                "bytes": _load(run, server, model, tensors, PLAIN),
            }
            samples = run.interleave(contestants, max_s=_MAX_S)
            what = "an echo" if model == "identity" else "a DLRM"
            run.report.compare(
                f"shared memory, HTTP, {what} of {ROWS} x {BYTES_A_ROW} B",
                samples,
                "bytes",
                ours="shared memory",
                unit="requests/s",
                target=SHARED,
            )
            run.settle(samples)


def guarded(run: Run, world: DlrmWorld) -> None:
    """Compares a token and TLS with each request, on kept connections, with neither."""
    certificate, key = _certificate(run.work)
    access = run.work / "access.yaml"
    made = subprocess.run(
        [
            *(sys.executable, "-m", "emberline", "token", "new", "--name", "load", "--role", "predict"),
            *("--access", str(access)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    token = made.stdout.split()[-1]
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    for batch, of_both, of_token in ((ROWS, GUARDED, TOKEN), (1, None, TOKEN)):
        rows = world.request(batch)
        with (
            _serving(run) as open_one,
            _serving(run, "--access-file", str(access)) as by_token,
            _serving(run, "--access-file", str(access), *tls, ca=certificate) as both,
        ):
            contestants = {
                "token and TLS": _load(run, both, "dlrm", rows, Way(ca=str(certificate), token=token)),
                "token": _load(run, by_token, "dlrm", rows, Way(token=token)),
                "open": _load(run, open_one, "dlrm", rows, PLAIN),
            }
            samples = run.interleave(contestants, max_s=_MAX_S)
        for ours, target in (("token and TLS", of_both), ("token", of_token)):
            run.report.compare(
                f"{ours}, HTTP, batch {batch}", samples, "open", ours=ours, unit="requests/s", target=target
            )
        run.settle(samples)


@contextlib.contextmanager
def _serving(run: Run, *arguments: str, ca: Path | None = None) -> Iterator[int]:
    """Starts a server of the folder and yields its HTTP port."""
    number = len(list(run.work.glob("store-*")))
    store = run.work / f"store-{number}"
    store.mkdir()
    server = ServerProcess(
        run.work / "models",
        store,
        run.work / f"serve-{number}.log",
        arguments=arguments,
        ca=ca,
    )
    with server, run.counted(*family(server.process.pid)):
        yield server.http_port


def _load(run: Run, port: int, model: str, tensors: list[Tensor], way: Way) -> Contestant:
    """Returns a contestant: requests a second of a closed loop of eight connections."""
    saved = run.work / f"{model}-{len(tensors[0].values)}.npz"
    save_bodies(saved, [binary_body(tensors)])
    seconds = 0.5 if run.quick else 2.5
    return lambda turn: max_rate(port, model, saved, run.work / "records.npy", seconds, way)


def _identity(folder: Path) -> None:
    """Publishes a model that returns its input."""
    folder.mkdir(parents=True)
    width = BYTES_A_ROW // 4
    lines = [f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: [{width}] }}' for side, name in _TENSORS.items()]
    (folder / "config.pbtxt").write_text("\n".join(['backend: "identity"', f"max_batch_size: {ROWS}", *lines]))


_TENSORS: Mapping[str, str] = {"input": "x", "output": "y"}


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Makes a self-signed certificate for this machine with openssl."""
    certificate, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        capture_output=True,
        check=True,
    )
    return certificate, key


if __name__ == "__main__":
    script("transports")
