"""The gRPC server: GRPCInferenceService with its calls handed to those who answer them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

from serving.errors import status_of
from serving.grpc.control import SERVICE, GrpcControl, read_message
from serving.grpc.inference import InferenceCalls
from serving.models import Models
from serving.ports import listen, port_message
from storage.errors import ConfigError, Unsupported

_MAX_CONCURRENT_CALLS = 4096
_INFER = "ModelInfer"


def grpc_server(
    models: Models, control: GrpcControl, *, max_message_bytes: int, share_port: bool = False
) -> grpc.aio.Server:
    """The server without its port. Made on the event loop that it will run on.

    share_port: other processes listen on the same port. Without it a second server that takes the port fails, where it
    would silently get half of the calls.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(share_port)),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CONCURRENT_CALLS)
    server.add_generic_rpc_handlers((_handlers(InferenceCalls(models), control),))
    return server


def bind_grpc(server: grpc.aio.Server, host: str, port: int, *, check: bool = True) -> int:
    """Takes the port, 0 for a free one, and returns it. Raises ConfigError. check: whether anyone listens there."""
    name = f"[{host}]" if ":" in host else host
    if check:
        # gRPC's own message says little, so the port is tried here first.
        with listen(host, port, "grpc_port"):
            pass
    try:
        return int(server.add_insecure_port(f"{name}:{port}"))
    except RuntimeError:
        raise ConfigError(port_message(host, port, "grpc_port", None), field="grpc_port") from None


def _handlers(inference: InferenceCalls, control: GrpcControl) -> grpc.GenericRpcHandler:
    """All methods of the service. They take bytes, so that what is no message is answered as any other mistake."""
    request = GetMessageClass(SERVICE.methods_by_name[_INFER].input_type)

    async def infer(data: bytes, context: Any) -> bytes:
        answer = await inference.infer(read_message(request, data), context.time_remaining())
        return bytes(answer.SerializeToString())

    async def ask(name: str, data: bytes, context: Any) -> bytes:
        return await control.call(name, data)

    handlers: dict[str, Any] = {}
    for method in SERVICE.methods:
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(functools.partial(_refuse, method.name))
            continue
        answer = infer if method.name == _INFER else functools.partial(ask, method.name)
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(_guarded(answer))
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _guarded(answer: Callable[[bytes, Any], Awaitable[bytes]]) -> Callable[[bytes, Any], Awaitable[Any]]:
    """Turns what is raised into the call's status."""

    async def guarded(data: bytes, context: Any) -> Any:
        try:
            return await answer(data, context)
        except Exception as error:
            _, code, text = status_of(error)
        return await _abort(context, code, text)

    return guarded


async def _refuse(name: str, requests: Any, context: Any) -> None:
    _, code, text = status_of(Unsupported(f"{name} is not supported by this server"))
    await _abort(context, code, text)


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> Any:
    try:
        await context.abort(code, text)
    except grpc.aio.AbortError:
        raise
    except Exception:
        # The caller has gone, or its deadline has passed: there is nobody left to tell, and nothing to log.
        raise asyncio.CancelledError from None
