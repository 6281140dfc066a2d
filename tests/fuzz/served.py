"""Starts a real server, as a user does, and checks its state and its answers after anything was sent to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from tests.fuzz.campaign import Campaign
from tests.integration.serving.conftest import Published
from tests.support.server_process import ServerProcess

MODEL, SPARE, ECHO = "ranker", "spare", "echo"
# Shared memory that exists, and the name under which it is registered.
SEGMENT, SEGMENT_BYTES, REGION = "emberline-fuzz", 4096, "fuzz"
_SHARED = Path("/dev/shm")
_MIB = 1 << 20
# How far the last third of the samples may be above the middle one.
_FACTOR, _SLACK_MIB = 1.25, 64.0
_BAD_WORDS = ("internal error", "Traceback", "could not be handed over")

_OPTIONS = """
parameters { key: "min_snapshot_timeout_ms" value { string_value: "20" } }
dynamic_batching { max_queue_delay_microseconds: 0 }
"""
_ECHO = """backend: "identity" max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] }, { name: "half" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] }, { name: "half" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


class Served:
    """Runs the server under test.

    published: the model behind `ranker` and `spare`, for right answers.
    """

    def __init__(self, folder: Path) -> None:
        """Starts the server. folder: an empty folder for models, store and log."""
        folder.mkdir(parents=True, exist_ok=True)
        self.published = Published(3)
        make_repository(self.published, folder / "repository")
        self.log = folder / "server.log"
        self._log_read = 0
        self._server = ServerProcess(
            folder / "repository",
            folder / "store",
            self.log,
            open_admin=True,
            arguments=["--max-body", "1MiB"],
        )
        self.http_port, self.grpc_port = self._server.http_port, self._server.grpc_port
        self._processes = self._living()
        if _SHARED.is_dir():
            (_SHARED / SEGMENT).write_bytes(bytes(SEGMENT_BYTES))
        self.memory_mib: list[float] = []
        rows = self.published.random_rows(8, 99)
        self._good = json.dumps({"instances": rows}).encode()
        self._scores = self.published.score(rows)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        (_SHARED / SEGMENT).unlink(missing_ok=True)

    def sample(self) -> None:
        """Records the memory of all processes of the server together."""
        found = 0
        for process in self._living():
            with contextlib.suppress(psutil.Error):
                found += process.memory_info().rss
        self.memory_mib.append(found / _MIB)

    def troubles(self) -> list[str]:
        """Returns what is wrong with the server now; empty when all is well."""
        if self._server.process.poll() is not None:
            return [f"the server ended with {self._server.process.returncode}: {self.log_tail()}"]
        if self._living() != self._processes:
            return [f"a process of the server was started anew: {self.log_tail()}"]
        return [*self._log_troubles(), *self._answer_troubles(), *self._memory_troubles()]

    def log_tail(self, count: int = 4000) -> str:
        """Returns the end of the server's log."""
        return self.log.read_text(errors="replace")[-count:]

    def memory_line(self) -> str:
        """Summarises the memory samples in text for people."""
        kept = self.memory_mib or [0.0]
        third = len(kept) // 3
        return (
            f"{kept[0]:.0f} MiB at first, {median(kept[third : 2 * third] or kept):.0f} in the middle third, "
            f"{median(kept[2 * third :]):.0f} in the last, {max(kept):.0f} at most"
        )

    def _living(self) -> list[psutil.Process]:
        own = psutil.Process(self._server.process.pid)
        return [own, *sorted(own.children(recursive=True), key=lambda process: process.pid)]

    def _log_troubles(self) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(self._log_read)
            text = file.read()
        self._log_read += len(text)
        new = text.decode(errors="replace")
        at = min((place for word in _BAD_WORDS if (place := new.find(word)) >= 0), default=-1)
        return [] if at < 0 else [f"the log says: {new[max(0, at - 300) : at + 4000]}"]

    def _answer_troubles(self) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            connection.request("POST", f"/v1/models/{MODEL}:predict", self._good)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                return [f"a good request is answered with {answer.status}: {text[:500]!r}"]
            predictions = json.loads(text)["predictions"]
        except (OSError, http.client.HTTPException) as error:
            return [f"a good request is not answered: {error!r}"]
        finally:
            connection.close()
        for name, expected in self._scores.items():
            served = np.array([row[name] for row in predictions])
            if np.abs(served - expected[:, 0]).max() > 1e-6:
                return [f"a good request has other scores than before: {served.tolist()}, not {expected.tolist()}"]
        return []

    def _memory_troubles(self) -> list[str]:
        samples = self.memory_mib
        if len(samples) < 9:
            return []
        third = len(samples) // 3
        before, after = median(samples[third : 2 * third]), median(samples[2 * third :])
        if after > before * _FACTOR + _SLACK_MIB:
            return [f"the server's memory grows: {self.memory_line()}"]
        return []


class Sampler:
    """Samples a server's memory in the background while clients send to it."""

    def __init__(self, served: Served, every_s: float = 0.5) -> None:
        self._served = served
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fuzz-memory", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._served.sample()
            except psutil.Error:
                return  # it has ended, which `troubles` tells


def make_repository(published: Published, repository: Path) -> None:
    """Publishes the model under two names, and adds one that returns its inputs."""
    published.publish(repository / MODEL)
    config = repository / MODEL / "config.pbtxt"
    text = config.read_text().replace("dynamic_batching {\n}", "")
    config.write_text(text + _OPTIONS)
    shutil.copytree(repository / MODEL, repository / SPARE)
    other = repository / SPARE / "config.pbtxt"
    other.write_text(other.read_text().replace(f'"{MODEL}"', f'"{SPARE}"'))
    (repository / ECHO).mkdir()
    (repository / ECHO / "config.pbtxt").write_text(_ECHO)


def run_served(campaign: Campaign, served: Served, run: Callable[[Campaign, Served], None]) -> None:
    """Runs a campaign against a server, and reports how the server withstood it."""
    campaign.begin()
    run(campaign, served)
    print(f"memory: {served.memory_line()}")
    if campaign.findings:
        print(served.log_tail())
