"""GRPCInferenceService: KServe v2 and Triton's metadata, statistics and repository; the rest says UNIMPLEMENTED."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.control_calls import ControlCalls
from serving.engine.repository import ModelRepository
from serving.errors import status_of
from serving.protocol import metadata
from serving.protocol.columns import to_columns
from serving.protocol.control_bodies import check_load_parameters, check_unload_parameters
from serving.protocol.proto_tensors import decode_proto_request, encode_proto_response, proto_parameters
from serving.protocol.routing import ANYWHERE, routing_of_parameters
from storage.errors import InvalidInput, Unsupported

_LONGEST_TIMEOUT_S = 86_400.0
_NOT_BUILT = (
    "ModelStreamInfer",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
_Method = Callable[[Any, Any, Any], Awaitable[Any]]


def _answered(method: _Method) -> _Method:
    """Turns what a method raises into the call's status."""

    @functools.wraps(method)
    async def guarded(self: Any, request: Any, context: Any) -> Any:
        try:
            if isinstance(request, DecodeError):
                raise InvalidInput(f"the request is not a message of this call: {request}")
            return await method(self, request, context)
        except Exception as error:
            _, code, text = status_of(error)
        return await _abort(context, code, text)

    return guarded


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> Any:
    try:
        await context.abort(code, text)
    except grpc.aio.AbortError:
        raise
    except Exception:
        # The caller has gone, or its deadline has passed: there is nobody left to tell, and nothing to log.
        raise asyncio.CancelledError from None


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The servicer, for a `grpc.aio` server."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._control = ControlCalls()
        for name in _NOT_BUILT:
            setattr(self, name, functools.partial(_refuse, name))

    @_answered
    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Scores one request."""
        given = proto_parameters(request)
        routing = routing_of_parameters(given) if given else ANYWHERE
        model = self._repository.get(request.model_name, request.model_version, routing.routing_key)
        model.check_load()
        decoded = decode_proto_request(model.signature, request, given)
        columns, batch = to_columns(model.signature, decoded.tensors)
        timeout_us = decoded.timeout_us
        left_s = context.time_remaining()
        if left_s is not None and left_s < _LONGEST_TIMEOUT_S:
            left_us = max(1, int(left_s * 1e6))
            timeout_us = min(timeout_us, left_us) if timeout_us else left_us
        result = await model.infer(
            columns,
            batch,
            timeout_us,
            min_snapshot=routing.min_snapshot,
            canary=model.takes_canary(routing.routing_key),
            follow=not request.model_version,
            priority=decoded.priority,
            routing_key=routing.routing_key,
        )
        snapshot = result.snapshot
        parameters: dict[str, Any] = {"snapshot": snapshot.id, "sequence": snapshot.sequence}
        if result.unresolved:
            parameters["unresolved"] = result.unresolved
        return encode_proto_response(model.signature, str(snapshot.version), decoded, result.outputs, parameters)

    @_answered
    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether the process answers."""
        return service_pb2.ServerLiveResponse(live=True)

    @_answered
    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether models are loaded."""
        return service_pb2.ServerReadyResponse(ready=self._repository.is_ready())

    @_answered
    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether one model is loaded; false for a model that there is not."""
        return service_pb2.ModelReadyResponse(ready=self._repository.is_model_ready(request.name, request.version))

    @_answered
    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Name, version, extensions."""
        return metadata.server_metadata()

    @_answered
    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Inputs and outputs."""
        model = self._repository.get(request.name, request.version)
        return metadata.model_metadata(model, self._repository.versions(request.name))

    @_answered
    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The completed config.pbtxt."""
        return service_pb2.ModelConfigResponse(config=self._repository.get(request.name, request.version).proto)

    @_answered
    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Counts and times, of one model or of all."""
        if not request.name:
            return metadata.model_statistics(await self._control.run(lambda: list(self._repository.loaded())))
        if not request.version:
            return metadata.model_statistics(self._repository.loaded_versions(request.name))
        return metadata.model_statistics([self._repository.get(request.name, request.version)])

    @_answered
    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Every model version and its state."""
        _check_repository(request)
        return metadata.repository_index(await self._control.run(self._repository.index), ready_only=request.ready)

    @_answered
    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Loads a model, or what is new in its folder."""
        _check_repository(request)
        check_load_parameters(_parameters(request))
        await self._control.run(lambda: self._repository.load(request.model_name))
        return service_pb2.RepositoryModelLoadResponse()

    @_answered
    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Drains and closes a model."""
        _check_repository(request)
        check_unload_parameters(_parameters(request))
        await self._control.run(lambda: self._repository.unload(request.model_name))
        return service_pb2.RepositoryModelUnloadResponse()


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise InvalidInput("repository_name is not supported: there is one repository", field="repository_name")


def _parameters(request: Any) -> dict[str, Any]:
    """The parameters of a repository call; one that is not set is None."""
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        for key, value in request.parameters.items()
    }


async def _refuse(name: str, request: Any, context: Any) -> None:
    _, code, text = status_of(Unsupported(f"{name} is not supported by this server"))
    await _abort(context, code, text)


def _handlers(service: InferenceService) -> grpc.GenericRpcHandler:
    """All methods of the service. Bytes that are no message reach the method as the error, so that it can answer."""
    descriptor = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    handlers: dict[str, Any] = {}
    for method in descriptor.methods:
        takes, gives = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        make = grpc.stream_stream_rpc_method_handler if method.client_streaming else grpc.unary_unary_rpc_method_handler
        read = functools.partial(_read, takes)
        handlers[method.name] = make(getattr(service, method.name), read, gives.SerializeToString)
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _read(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        return error


def grpc_server(repository: ModelRepository, *, max_message_bytes: int, max_concurrent: int) -> grpc.aio.Server:
    """The server without its port. Made on the event loop that it will run on."""
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Without this a second server could take the same port and silently get half of the calls.
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_concurrent)
    server.add_generic_rpc_handlers((_handlers(InferenceService(repository)),))
    return server
