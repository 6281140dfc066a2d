"""Tests that the link from front end to engine frees queue places and memory, whoever gives up, is late, or ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Server
from serving.control.models import Model
from serving.engine.core_shares import CoreAccount, CoreShares
from serving.frontends import frontend_connection
from serving.frontends.calls import EngineCalls
from serving.frontends.engine_connection import EngineConnection
from serving.frontends.frontend_connection import FrontendConnection
from serving.frontends.remote import RemoteModel, RemoteModels
from serving.grpc.control import LocalGrpcControl
from serving.pipeline.host import Pipeline
from storage.errors import DeadlineExceeded, InvalidInput, NotFound, Overloaded, Unavailable
from storage.features import Column
from tests.integration.serving.conftest import append_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="front ends in processes of their own need Linux")

MEMORY = 1 << 16
LONG_US = 3_600_000_000


def columns(batch: int, first_item: int = 0) -> dict[str, Column]:
    return {
        "user": Column("INT64", batch, 1, np.ones(batch, np.int64)),
        "item": Column("INT64", batch, 1, np.arange(first_item, first_item + batch, dtype=np.int64)),
        "price": Column("FP32", batch, 2, np.ones(2 * batch, np.float32)),
    }


class Line:
    """Both ends of a connection on one event loop."""

    def __init__(self, server: Server, path: Path, memory_bytes: int = MEMORY) -> None:
        self.repository = server.repository
        self.endpoint: Any = server.repository.get("ranker")
        self.connections: list[FrontendConnection] = []
        self._calls = EngineCalls(server.repository, None, LocalGrpcControl(server.repository))  # type: ignore[arg-type]
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.setblocking(False)
        self.link = EngineConnection(str(path), memory_bytes, lambda: self.models.forget_all())
        self.models = RemoteModels(self.link, 1 << 20)

    def open(self) -> None:
        """Lets the engine answer from now on."""
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        self.link.close()
        for connection in self.connections:
            connection.close()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()

    async def model(self) -> Model:
        await until(lambda: self.link.is_up)
        return await self.models.find("ranker", "", "")

    @property
    def used(self) -> int:
        """Returns the bytes of requests that are not finished."""
        return self.link._blocks.used

    def _accept(self) -> None:
        end, _ = self._listener.accept()
        self.connections.append(FrontendConnection(end, self.repository, self._calls, self.connections.remove))


async def until(holds: Callable[[], object]) -> None:
    """Waits for the condition; `run` bounds the time."""
    while not holds():
        await asyncio.sleep(0.002)


@pytest.fixture
def server(start_server: Callable[..., Server], repository: Path, tmp_path: Path) -> Iterator[Server]:
    append_config(repository, "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n")
    started = start_server(repository, tmp_path / "store")
    yield started
    started.stop()


class Gate:
    """Blocks sessions before they read a request, while it is closed.

    seen: the items of the requests that sessions have read.
    """

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.waiting = threading.Event()
        self.seen: list[list[int]] = []


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    real = Pipeline.features

    def features(self: Pipeline, requests: Any) -> Any:
        made.waiting.set()
        assert made.is_open.wait(20)
        made.seen += [given["item"].values.tolist() for given, _ in requests]
        return real(self, requests)

    monkeypatch.setattr(Pipeline, "features", features)
    yield made
    made.is_open.set()


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Callable[..., None]:
    def on_loop(test: Callable[[Line], Awaitable[None]], *, is_open: bool = True, memory_bytes: int = MEMORY) -> None:
        @contextlib.asynccontextmanager
        async def line() -> AsyncIterator[Line]:
            made = Line(server, tmp_path / "engine", memory_bytes)
            made.link.start()
            if is_open:
                made.open()
            try:
                yield made
            finally:
                made.close()

        async def bounded() -> None:
            async with asyncio.timeout(30), line() as made:
                await test(made)

        asyncio.run(bounded())

    return on_loop


def test_cancelling_a_request_frees_its_place_and_its_memory(run: Any, gate: Gate) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        gate.is_open.clear()
        held = asyncio.ensure_future(model.infer(columns(1), 1))
        await until(gate.waiting.is_set)
        waiting = [asyncio.ensure_future(model.infer(columns(1, item), 1)) for item in (5, 6)]
        await until(lambda: line.endpoint.queued == 2)
        with pytest.raises(Overloaded):
            await model.infer(columns(1), 1)
        for request in waiting:
            request.cancel()
        await until(lambda: line.endpoint.queued == 0)
        await until(lambda: line.link.in_flight == 1)
        # Giving up affects only the caller once a session has the request: its memory is kept until it is answered.
        held.cancel()
        await asyncio.gather(held, *waiting, return_exceptions=True)
        assert line.used > 0
        gate.is_open.set()
        await until(lambda: line.link.in_flight == 0)
        assert line.used == 0
        assert gate.seen == [[0]]

    run(test)


def test_a_request_that_is_given_up_between_queue_and_session_frees_its_memory(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, may_work = threading.Event(), threading.Event()
    real = CoreShares.turn

    @contextlib.contextmanager
    def turn(self: CoreShares, account: CoreAccount) -> Iterator[None]:
        taken.set()
        assert may_work.wait(20)
        with real(self, account):
            yield

    async def test(line: Line) -> None:
        model = await line.model()
        monkeypatch.setattr(CoreShares, "turn", turn)
        request = asyncio.ensure_future(model.infer(columns(1), 1))
        await until(taken.is_set)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        # One round trip later, the engine has received the message.
        await line.models.is_current(model, "")
        assert line.used > 0
        may_work.set()
        await until(lambda: line.used == 0)
        assert line.link.in_flight == 0

    run(test)


def test_a_model_answers_what_was_admitted_for_it_until_it_is_forgotten(run: Any) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        assert isinstance(model, RemoteModel)
        assert line.models.known("ranker", "", "") is model
        assert model.answers("")
        line.models.forget(("ranker", ""), model)
        assert not model.answers("")
        again = await line.model()
        assert again is not model
        assert again.answers("")

    run(test)


def test_memory_is_not_used_again_while_a_session_reads_what_was_given_up(run: Any, gate: Gate) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        gate.is_open.clear()
        first = asyncio.ensure_future(model.infer(columns(4, 100), 4, min_snapshot="1.0"))
        await until(gate.waiting.is_set)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: line.link.in_flight == 0)
        second = asyncio.ensure_future(model.infer(columns(4, 200), 4))
        await until(lambda: line.endpoint.queued == 1)
        gate.is_open.set()
        await second
        assert gate.seen == [[100, 101, 102, 103], [200, 201, 202, 203]]
        await until(lambda: line.used == 0)

    run(test)


def test_a_deadline_that_passes_in_the_queue_is_answered_then(run: Any, gate: Gate) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        gate.is_open.clear()
        held = asyncio.ensure_future(model.infer(columns(1), 1))
        await until(gate.waiting.is_set)
        for min_snapshot in ("", "1.0"):
            with pytest.raises(DeadlineExceeded, match="expired in the queue"):
                await model.infer(columns(1), 1, 20_000, min_snapshot=min_snapshot)
        assert line.endpoint.queued == 0
        with pytest.raises(DeadlineExceeded):
            await model.infer(columns(1), 1, 20_000, min_snapshot="9" * 32)
        gate.is_open.set()
        assert (await held).snapshot.version == 1
        assert line.used == 0

    run(test)


def test_requests_that_were_answered_are_not_kept_until_their_deadlines(run: Any) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        for _ in range(20):
            await model.infer(columns(1), 1, LONG_US)
        await until(lambda: not line.connections[0]._deadlines)

    run(test)


def test_a_far_deadline_is_kept_too(run: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend_connection, "_LOOK_AGAIN_S", 0.02)

    async def test(line: Line) -> None:
        model = await line.model()
        gate.is_open.clear()
        held = asyncio.ensure_future(model.infer(columns(1), 1))
        await until(gate.waiting.is_set)
        with pytest.raises(DeadlineExceeded, match="expired in the queue"):
            await model.infer(columns(1), 1, 200_000)
        gate.is_open.set()
        await held

    run(test)


def test_an_engine_that_goes_fails_what_it_held_and_the_next_one_answers(run: Any, gate: Gate) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        gate.is_open.clear()
        held = asyncio.ensure_future(model.infer(columns(1), 1))
        call = asyncio.ensure_future(line.link.call({"call": "grpc", "method": "ServerReady"}))
        await until(gate.waiting.is_set)
        line.connections.pop().close()
        with pytest.raises(Unavailable, match="ended before it answered; try again"):
            await held
        with contextlib.suppress(Unavailable):
            await call
        gate.is_open.set()
        again = await line.model()
        assert again is not model
        answer = await again.infer(columns(2), 2)
        assert [len(values) for values in answer.outputs] == [2, 2]
        assert (line.used, line.link.in_flight) == (0, 0)

    run(test)


def test_an_engine_that_does_not_take_the_line_yet_keeps_nobody_waiting(run: Any) -> None:
    async def test(line: Line) -> None:
        await asyncio.sleep(0.02)
        with pytest.raises(Unavailable, match="is being started; try again"):
            await line.models.find("ranker", "", "")
        line.open()
        answer = await (await line.model()).infer(columns(1), 1)
        assert answer.snapshot.version == 1

    run(test, is_open=False)


def test_a_front_end_that_goes_leaves_no_request_in_the_queue(run: Any, gate: Gate) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        gate.is_open.clear()
        requests = [asyncio.ensure_future(model.infer(columns(1), 1))]
        await until(gate.waiting.is_set)
        requests += [asyncio.ensure_future(model.infer(columns(1), 1)) for _ in range(2)]
        await until(lambda: line.endpoint.queued == 2)
        line.link.close()
        await until(lambda: line.endpoint.queued == 0)
        await until(lambda: not line.connections)
        gate.is_open.set()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)

    run(test)


def test_requests_beyond_the_memory_are_refused_until_there_is_room(run: Any, gate: Gate) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        gate.is_open.clear()
        held = [asyncio.ensure_future(model.infer(columns(1), 1))]
        await until(gate.waiting.is_set)
        held.append(asyncio.ensure_future(model.infer(columns(1), 1)))
        await until(lambda: line.endpoint.queued == 1)
        with pytest.raises(Overloaded, match="are held by requests already"):
            await model.infer(columns(1), 1)
        gate.is_open.set()
        await asyncio.gather(*held)
        assert line.used == 0
        await asyncio.sleep(0.01)
        model.check_load()
        await model.infer(columns(1), 1)

    run(test, memory_bytes=1 << 13)


def test_errors_and_odd_names_leave_no_memory_behind(run: Any) -> None:
    async def test(line: Line) -> None:
        model = await line.model()
        for name in ("x", "\ud800", "9.9.9"):
            with pytest.raises(InvalidInput):
                await model.infer(columns(1), 1, min_snapshot=name)
        with pytest.raises(InvalidInput):
            await model.infer({"item": columns(1)["item"]}, 1)
        assert len((await model.infer(columns(0), 0)).outputs[0]) == 0
        with pytest.raises(NotFound):
            await line.models.find("nobody", "", "")
        assert (line.used, line.link.in_flight) == (0, 0)

    run(test)
