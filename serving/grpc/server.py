"""Builds the gRPC server: GRPCInferenceService, health and reflection, each call passed to the code that answers it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from serving._front import Observer
from serving.control.models import Models
from serving.errors import status_of
from serving.grpc.control import EXPLAIN, SERVICE, GrpcControl, message_class, read_message
from serving.grpc.failing import fail
from serving.grpc.gate import GrpcGate
from serving.grpc.health import HealthCalls
from serving.grpc.inference import InferenceCalls
from serving.grpc.message_bounds import check_message
from serving.grpc.observed import GrpcObserver, StreamObserver
from serving.grpc.quiet import keep_quiet_about_callers_that_left
from serving.grpc.streaming import stream_answers
from serving.observing.facts import RequestFacts
from serving.ports import port_message
from serving.protocol.request_ids import REQUEST_ID, request_id_of_metadata
from serving.security.tls import ServerTls
from storage.errors import ConfigError, EmberlineError

# Calls in progress; one more ends with RESOURCE_EXHAUSTED.
_MAX_CONCURRENT_CALLS = 8192
# Calls that wait until Python handles them. gRPC's own bounds are 1,000 and 3,000; beyond them it resets calls, and the
# client sees CANCELLED without a reason.
_MAX_PENDING_CALLS = 4 * _MAX_CONCURRENT_CALLS
# Calls of one connection; its client holds further calls back until others have ended.
_MAX_STREAMS = 1024
# A connection that does not begin with HTTP/2 ends after the first time; one without a call ends after the second, and
# its client opens another connection for the next call.
_HANDSHAKE_MS = 10_000
_IDLE_MS = 900_000
_INFER = "ModelInfer"


def grpc_server(
    models: Models,
    control: GrpcControl,
    gate: GrpcGate,
    health: HealthCalls,
    observer: Observer,
    *,
    max_message_bytes: int,
    max_connections: int,
) -> grpc.aio.Server:
    """Creates the server without its port, on the event loop that it will run on.

    gate: decides which calls are admitted. health: answers probes. observer: takes note of calls that have ended.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # The port is bound already: `serving.ports` keeps it from other servers.
        ("grpc.so_reuseport", 1),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _MAX_PENDING_CALLS),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
    ]
    keep_quiet_about_callers_that_left()
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CONCURRENT_CALLS)
    observed = GrpcObserver(observer, gate)
    server.add_generic_rpc_handlers((_handlers(InferenceCalls(models), control, gate, health, observed),))
    return server


def bind_grpc(server: grpc.aio.Server, host: str, port: int, tls: ServerTls | None = None) -> int:
    """Listens on a port that `serving.ports` has reserved, 0 for a free one, and returns it. Raises ConfigError."""
    name = f"[{host}]" if ":" in host else host
    try:
        if tls is not None:
            return int(server.add_secure_port(f"{name}:{port}", tls.grpc_credentials()))
        return int(server.add_insecure_port(f"{name}:{port}"))
    except RuntimeError:
        raise ConfigError(port_message(host, port, "grpc_port", None), field="grpc_port") from None


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Returns the handlers of the methods; a caller without permission gets one that does not read the message."""

    def __init__(
        self, handlers: dict[str, Any], open_handlers: dict[str, Any], gate: GrpcGate, observed: GrpcObserver
    ) -> None:
        self._handlers = handlers
        self._open_handlers = open_handlers
        self._gate = gate
        self._observed = observed

    def service(self, handler_call_details: Any) -> Any:
        """See grpc.GenericRpcHandler."""
        asked_by_all = self._open_handlers.get(handler_call_details.method)
        if asked_by_all is not None:
            return asked_by_all
        service, _, method = handler_call_details.method.lstrip("/").rpartition("/")
        if service != SERVICE.full_name:
            method = ""
        try:
            self._gate.begin(method, handler_call_details.invocation_metadata)
        except EmberlineError as error:
            return grpc.stream_stream_rpc_method_handler(functools.partial(self._refuse, method, error))
        return self._handlers.get(method)

    async def _refuse(self, method: str, error: EmberlineError, requests: Any, context: Any) -> None:
        facts = self._observed.begin(method)
        self._gate.refused(method, context, error)
        _, code, text = status_of(error)
        if facts is not None:
            self._observed.ended(facts, context, code=code, error=text)
        fail(context, code, text)


def _handlers(
    inference: InferenceCalls, control: GrpcControl, gate: GrpcGate, health: HealthCalls, observed: GrpcObserver
) -> grpc.GenericRpcHandler:
    """Returns handlers of all methods; they take bytes, so that a malformed message is answered like other mistakes."""
    request = GetMessageClass(SERVICE.methods_by_name[_INFER].input_type)

    async def infer(data: bytes, context: Any, facts: RequestFacts | None) -> bytes:
        await check_message(data, is_inference=True)
        message = read_message(request, data)
        gate.admit_inference(message.model_name, context)
        metadata = context.invocation_metadata
        request_id = request_id_of_metadata(metadata())
        answer = await inference.infer(message, context.time_remaining(), metadata, request_id, facts)
        return bytes(answer.SerializeToString())

    async def ask(name: str, data: bytes, context: Any, facts: RequestFacts | None) -> bytes:
        await check_message(data, is_inference=name == EXPLAIN)
        message = read_message(message_class(name), data)
        admission = gate.admit(name, message, context)
        if admission is not None:
            return await gate.audited(admission, message, lambda: control.call(name, data))
        return await control.call(name, data)

    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        def admitted(model: str) -> None:
            gate.admit_inference(model, context)

        request_id = request_id_of_metadata(context.invocation_metadata())
        if request_id:
            await context.send_initial_metadata(((REQUEST_ID, request_id),))
        async for answer in stream_answers(
            inference,
            requests,
            context.time_remaining,
            context.invocation_metadata,
            admitted,
            lambda error: gate.told(error, context),
            StreamObserver(observed, context),
        ):
            yield answer

    handlers: dict[str, Any] = {}
    for method in SERVICE.methods:
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(stream)
            continue
        answer = infer if method.name == _INFER else functools.partial(ask, method.name)
        handlers[method.name] = grpc.unary_stream_rpc_method_handler(_guarded(method.name, answer, gate, observed))
    explain = _guarded(EXPLAIN, functools.partial(ask, EXPLAIN), gate, observed)
    handlers[EXPLAIN] = grpc.unary_stream_rpc_method_handler(explain)
    return _Service(handlers, health.handlers(), gate, observed)


def _guarded(
    method: str,
    answer: Callable[[bytes, Any, RequestFacts | None], Awaitable[bytes]],
    gate: GrpcGate,
    observed: GrpcObserver,
) -> Callable[[bytes, Any], Awaitable[None]]:
    """Wraps a handler so that its exceptions become the call's status.

    To gRPC it is one of a stream of responses that has one: with an error, gRPC sends an empty message for a unary
    handler, after which no client repeats a call.
    """

    async def guarded(data: bytes, context: Any) -> None:
        facts = observed.begin(method)
        request_id = request_id_of_metadata(context.invocation_metadata())
        echoed = ((REQUEST_ID, request_id),) if request_id else ()
        code, text, content = grpc.StatusCode.CANCELLED, "", b""
        try:
            content = await answer(data, context, facts)
            if echoed:
                await context.send_initial_metadata(echoed)
            await context.write(content)
            code = grpc.StatusCode.OK
        except Exception as error:
            _, code, text = status_of(gate.told(error, context))
            if echoed:
                # Before an error nothing else may be sent: a client repeats no call whose response has begun.
                context.set_trailing_metadata(echoed)
            fail(context, code, text)
        finally:
            if facts is not None:
                size, length = len(data), len(content)
                observed.ended(facts, context, code=code, error=text, request_bytes=size, response_bytes=length)

    return guarded
