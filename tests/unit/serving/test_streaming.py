from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from serving.grpc.streaming import MAX_IN_FLIGHT, stream_answers
from storage.errors import NotFound


class Inference:
    """Answers a request once `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = 0

    async def infer(self, request: Any, left_s: float | None, metadata: Any, facts: Any) -> Any:
        self.begun += 1
        await self.go.wait()
        if request.model_name == "nobody":
            raise NotFound("there is no such model")
        return service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


async def requests(count: int, model: str = "m") -> AsyncIterator[bytes]:
    for number in range(count):
        yield service_pb2.ModelInferRequest(model_name=model, id=str(number)).SerializeToString()


def stream(inference: Inference, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    given: Any = inference
    return stream_answers(given, messages, lambda: None, tuple, lambda model: None, lambda error: error)


def read(message: bytes) -> Any:
    return service_pb2.ModelStreamInferResponse.FromString(message)


def test_answers_come_in_the_order_of_the_requests_and_no_more_are_under_way_than_may_be() -> None:
    async def test() -> None:
        inference = Inference()
        answers = stream(inference, requests(3 * MAX_IN_FLIGHT))
        first = asyncio.ensure_future(anext(answers))
        while inference.begun < MAX_IN_FLIGHT:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert inference.begun <= MAX_IN_FLIGHT + 2
        inference.go.set()
        found = [read(await first)] + [read(message) async for message in answers]
        assert [entry.infer_response.id for entry in found] == [str(number) for number in range(3 * MAX_IN_FLIGHT)]

    run(test())


def test_what_fails_is_reported_in_its_place_and_the_stream_goes_on() -> None:
    async def messages() -> AsyncIterator[bytes]:
        yield b"\xff"
        async for message in requests(1, "nobody"):
            yield message
        async for message in requests(1):
            yield message

    async def test() -> None:
        inference = Inference()
        inference.go.set()
        found = [read(message) async for message in stream(inference, messages())]
        assert "not a message" in found[0].error_message
        assert "no such model" in found[1].error_message
        assert found[2].error_message == ""
        assert found[2].infer_response.parameters["triton_final_response"].bool_param is True

    run(test())


@pytest.mark.parametrize("count", [1, MAX_IN_FLIGHT, 4 * MAX_IN_FLIGHT])
def test_nothing_is_left_of_a_stream_that_is_given_up(count: int) -> None:
    async def test() -> None:
        inference = Inference()
        before = asyncio.all_tasks()

        async def consume() -> None:
            async for _ in stream(inference, requests(count)):
                pass

        task = asyncio.create_task(consume())
        while inference.begun < min(count, MAX_IN_FLIGHT):
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.02)
        assert asyncio.all_tasks() - before == set()

    run(test())


def test_a_stream_that_breaks_ends() -> None:
    async def messages() -> AsyncIterator[bytes]:
        async for message in requests(2):
            yield message
        raise ConnectionError("gone")

    async def test() -> None:
        inference = Inference()
        inference.go.set()
        assert len([message async for message in stream(inference, messages())]) == 2

    run(test())
