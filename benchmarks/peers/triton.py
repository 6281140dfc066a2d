"""Runs a Triton server in a process of its own: of the DLRM, or of any repository."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.peers import PeerMissingError
from benchmarks.peers.environment import last_line
from benchmarks.peers.triton_environment import FOLDER, library_path, server_folder
from tests.support.server_process import free_ports

_ROOT = Path(__file__).parents[2]
_START_S, _STOP_S = 90.0, 30.0


@dataclass(frozen=True)
class TritonSettings:
    """The settings of a Triton server."""

    #: Processes of the model.
    instances: int = 1
    #: torch threads of each process.
    threads: int = 1
    #: Microseconds that a batch waits for more requests.
    delay_us: int = 0

    def __str__(self) -> str:
        return f"{self.instances} instance(s), {self.threads} thread(s), delay {self.delay_us} us"


class TritonProcess:
    """Serves one model of a repository on free ports; ready when the constructor returns; a context manager.

    folder: for its log. arguments: more of tritonserver. Raises PeerMissingError.
    """

    def __init__(self, folder: Path, repository: Path, model: str, arguments: Sequence[str] = ()) -> None:
        programs = server_folder()
        self.http_port, self.grpc_port = free_ports(2)
        self._model = model
        command = [
            str(programs / "bin" / "tritonserver"),
            f"--model-repository={repository}",
            f"--backend-directory={programs / 'backends'}",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--allow-metrics=false",
            *arguments,
        ]
        self._log = folder / "triton.log"
        environment = {"LD_LIBRARY_PATH": library_path(), "PATH": f"{FOLDER / 'bin'}:/usr/bin:/bin"}
        with self._log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops the server; its instances end with it."""
        self.process.terminate()
        try:
            self.process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_S
        url = f"http://127.0.0.1:{self.http_port}/v2/models/{self._model}/ready"
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=1.0):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
        raise PeerMissingError(f"Triton is not ready: {last_line(self._log.read_text())}")


class TritonServer(TritonProcess):
    """Serves the DLRM.

    folder: for its model repository and log. weights: the file that DlrmWorld wrote. reloads: `reload` may be called.
    Raises PeerMissingError.
    """

    def __init__(
        self,
        folder: Path,
        weights: Path,
        settings: TritonSettings,
        max_batch_size: int = 1024,
        *,
        reloads: bool = False,
    ) -> None:
        server_folder()
        model = folder / "triton" / "dlrm" / "1"
        model.mkdir(parents=True, exist_ok=True)
        (model / "model.py").write_text(Path(__file__).with_name("triton_model.py").read_text())
        self._config, self._settings, self._max_batch_size = model.parent / "config.pbtxt", settings, max_batch_size
        self._config.write_text(_config(weights, settings, max_batch_size))
        explicit = ["--model-control-mode=explicit", "--load-model=dlrm"] if reloads else []
        super().__init__(folder, folder / "triton", "dlrm", explicit)

    def reload(self, weights: Path) -> None:
        """Loads the model anew with other weights, and returns when requests get their scores."""
        self._config.write_text(_config(weights, self._settings, self._max_batch_size))
        url = f"http://127.0.0.1:{self.http_port}/v2/repository/models/dlrm/load"
        with urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=_START_S):
            pass


def _config(weights: Path, settings: TritonSettings, max_batch_size: int) -> str:
    parameters = {"weights": str(weights), "root": str(_ROOT), "threads": str(settings.threads)}
    return "\n".join(
        [
            f'backend: "python" max_batch_size: {max_batch_size}',
            'input [{ name: "ids" data_type: TYPE_INT64 dims: [26] }]',
            'input [{ name: "dense" data_type: TYPE_FP32 dims: [13] }]',
            'output [{ name: "score" data_type: TYPE_FP32 dims: [1] }]',
            f"instance_group [{{ kind: KIND_CPU count: {settings.instances} }}]",
            f"dynamic_batching {{ max_queue_delay_microseconds: {settings.delay_us} }}",
            *(
                f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
                for key, value in parameters.items()
            ),
        ]
    )
