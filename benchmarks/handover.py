"""Measures the hand-over between a front end and the engine: round trips between two processes, nothing computed.

python -m benchmarks.handover SOCKET         # the engine's end, for `round_trips`
python -m benchmarks.handover --echo FD      # the other end of `empty_round_trips`
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from serving.engine.endpoint import Endpoint
from serving.engine.requests import InferenceResult, QueuedRequest
from serving.engine.statistics import ModelStatistics
from serving.event_loop import run_on_loop
from serving.frontends.calls import EngineCalls
from serving.frontends.engine_connection import EngineConnection, RemoteSnapshot
from serving.frontends.frontend_connection import FrontendConnection
from serving.frontends.remote import RemoteModels
from serving.interpreter import share_gil
from serving.model_config.queue_settings import QueueSettings
from serving.protocol.signature import ModelSignature, OutputSignature
from serving.repository.regions import SharedRegions
from storage.features import Column, InputSpec

MEMORY = 1 << 26
_PACKET = bytes(200)
_SNAPSHOT: Any = RemoteSnapshot("0" * 32, 1, 0)
_INPUTS = [
    InputSpec.model_validate({"name": "ids", "dtype": "INT64", "width": 26}),
    InputSpec.model_validate({"name": "dense", "dtype": "FP32", "width": 13}),
]


class _Prompt(Endpoint):
    """Answers at once with the last of the request's dense values, so they must have arrived."""

    def __init__(self) -> None:
        self.name, self.version = "prompt", "1"
        self.signature = ModelSignature("prompt", _INPUTS, [OutputSignature("score", "FP32", (1,))], 4096)
        self.queue_settings = QueueSettings()
        self.statistics = self.canary_statistics = ModelStatistics()
        self.history = SimpleNamespace(canary=None, current=_SNAPSHOT)  # type: ignore[assignment]

    def put(self, call: QueuedRequest) -> None:
        dense = call.columns["dense"].values
        assert isinstance(dense, np.ndarray)
        scores = np.full((call.batch, 1), dense[-1], np.float32)
        call.sink.deliver([(call, InferenceResult([scores], _SNAPSHOT))])


class _Repository:
    def __init__(self) -> None:
        self._endpoint = _Prompt()
        self.regions = SharedRegions(0)

    def get(self, name: str, version: str = "", routing_key: str = "") -> Endpoint:
        return self._endpoint

    def answering(self, name: str) -> list[Endpoint]:
        return [self._endpoint]


def round_trips(folder: Path, rows: int, count: int) -> list[float]:
    """Returns the microseconds of each of `count` hand-overs of `rows` rows of 260 bytes, one after the other."""
    path = folder / "engine.sock"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.handover", str(path)])
    took: list[float] = []
    try:
        share_gil()
        run_on_loop(_ask(path, rows, count, took))
    finally:
        process.kill()
        process.wait()
    return took


def empty_round_trips(count: int) -> list[float]:
    """Returns the microseconds of `count` round trips of a small packet between two processes that only wait for it.

    This is the cost of waking a process.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "benchmarks.handover", "--echo", str(far.fileno())]
    took: list[float] = []
    with near, far, subprocess.Popen(command, pass_fds=[far.fileno()]) as process:
        try:
            for number in range(count + 1):
                began = time.perf_counter_ns()
                near.send(_PACKET)
                near.recv(len(_PACKET))
                if number:  # the first one waits for the process to start
                    took.append((time.perf_counter_ns() - began) / 1000)
        finally:
            process.kill()
    return took


def _echo(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as end:
        while packet := end.recv(len(_PACKET)):
            end.send(packet)


async def _ask(path: Path, rows: int, count: int, took: list[float]) -> None:
    link = EngineConnection(str(path), MEMORY, lambda: None)
    link.start()
    await link.wait_until_up(30.0)
    model = await RemoteModels(link, 0).find("prompt", "", "")
    columns = {
        "ids": Column("INT64", rows, 26, np.arange(rows * 26, dtype=np.int64)),
        "dense": Column("FP32", rows, 13, np.full(rows * 13, 2.5, np.float32)),
    }
    for number in range(count + count // 10):
        began = time.perf_counter_ns()
        answer = await model.infer(columns, rows)
        spent = time.perf_counter_ns() - began
        if answer.outputs[0].shape != (rows, 1) or answer.outputs[0][-1, 0] != 2.5:
            raise RuntimeError("the answer is not what was asked for")
        if number >= count // 10:
            took.append(spent / 1000)
    link.close()


async def _answer(path: str) -> None:
    repository: Any = _Repository()
    control: Any = None
    calls = EngineCalls(repository, control, control)
    connections: list[FrontendConnection] = []
    forget: Callable[[FrontendConnection], None] = connections.remove
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(
            listener.fileno(),
            lambda: connections.append(FrontendConnection(listener.accept()[0], repository, calls, forget)),
        )
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "--echo":
        _echo(int(sys.argv[2]))
    else:
        share_gil()
        run_on_loop(_answer(sys.argv[1]))
