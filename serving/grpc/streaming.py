"""Answers ModelStreamInfer: one stream carries requests, and answers in the order of the requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from serving.errors import status_of
from serving.grpc.control import SERVICE, read_message
from serving.grpc.inference import InferenceCalls
from serving.grpc.message_bounds import check_message

# Requests of one stream that are answered at a time; the next is read when the first of them is answered.
MAX_IN_FLIGHT = 64

_REQUEST = GetMessageClass(SERVICE.methods_by_name["ModelStreamInfer"].input_type)
_FINAL = "triton_final_response"


async def stream_answers(
    inference: InferenceCalls,
    requests: AsyncIterator[bytes],
    left_s: Callable[[], float | None],
    metadata: Callable[[], Any],
    check: Callable[[str], None],
    told: Callable[[BaseException], BaseException],
) -> AsyncIterator[bytes]:
    """Yields the answers to a stream of requests. A failed request gets a message with the reason; the stream goes on.

    left_s: returns the seconds until the deadline of the stream. metadata: returns its metadata. check: called with
    each request's model; raises to refuse it. told: returns an error with only what the caller is allowed to know.
    """
    answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(MAX_IN_FLIGHT)
    running: set[asyncio.Task[Any]] = set()

    def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        running.add(task)
        task.add_done_callback(running.discard)
        return task

    async def read() -> None:
        # A broken stream ends as a complete one does. After a cancellation, no one takes further answers.
        with contextlib.suppress(Exception):
            async for data in requests:
                await answers.put(start(_answer(inference, data, left_s(), metadata, check, told)))
        await answers.put(None)

    start(read())
    try:
        while (task := await answers.get()) is not None:
            yield await task
    finally:
        for left in list(running):
            left.cancel()


async def _answer(
    inference: InferenceCalls,
    data: bytes,
    left_s: float | None,
    metadata: Callable[[], Any],
    check: Callable[[str], None],
    told: Callable[[BaseException], BaseException],
) -> bytes:
    response = service_pb2.ModelStreamInferResponse()
    try:
        await check_message(data, is_inference=True)
        request = read_message(_REQUEST, data)
        response.infer_response.id = request.id
        check(request.model_name)
        response.infer_response.CopyFrom(await inference.infer(request, left_s, metadata))
        response.infer_response.parameters[_FINAL].bool_param = True
    except Exception as error:
        response.error_message = status_of(told(error))[2]
    return bytes(response.SerializeToString())
