"""Answers ModelStreamInfer: one stream carries requests, and answers in the order of the requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from serving.errors import status_of
from serving.grpc.control import SERVICE, read_message
from serving.grpc.inference import InferenceCalls
from serving.grpc.message_bounds import check_message
from serving.grpc.observed import StreamObserver

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
    observed: StreamObserver | None = None,
) -> AsyncIterator[bytes]:
    """Yields the answers to a stream of requests. A failed request gets a message with the reason; the stream goes on.

    left_s: returns the seconds until the deadline of the stream. metadata: returns its metadata. check: called with
    each request's model; raises to refuse it. told: returns an error with only what the caller is allowed to know.
    observed: takes note of requests that have ended.
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
                await answers.put(start(_answer(inference, data, left_s(), metadata, check, told, observed)))
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
    observed: StreamObserver | None,
) -> bytes:
    response = service_pb2.ModelStreamInferResponse()
    facts = None if observed is None else observed.begin()
    code, content = grpc.StatusCode.CANCELLED, b""
    try:
        await check_message(data, is_inference=True)
        request = read_message(_REQUEST, data)
        response.infer_response.id = request.id
        check(request.model_name)
        response.infer_response.CopyFrom(await inference.infer(request, left_s, metadata, facts=facts))
        response.infer_response.parameters[_FINAL].bool_param = True
        code = grpc.StatusCode.OK
    except Exception as error:
        _, code, response.error_message = status_of(told(error))
    finally:
        content = bytes(response.SerializeToString())
        if observed is not None and facts is not None:
            observed.ended(facts, code, response.error_message, len(data), len(content))
    return content
