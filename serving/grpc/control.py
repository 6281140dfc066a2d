"""Answers Triton's metadata, statistics and repository calls over gRPC, from bytes to bytes, so in any process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from serving.control import metadata
from serving.control.bodies import check_load_parameters, check_unload_parameters
from serving.control.calls import ControlCalls
from serving.control.explaining import explain_message
from serving.grpc.shared_memory import SettingsCalls, SharedMemoryCalls
from serving.protocol.json_text import dump_json
from storage.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from serving.repository.model_repository import ModelRepository

#: A method of our own beside those of the service: a ModelInferRequest with a parameter `row`, and for an answer a
#: ModelInferResponse with one BYTES value, the explanation as JSON.
EXPLAIN = "ModelExplain"
SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


class GrpcControl(Protocol):
    """Answers every unary call but ModelInfer."""

    async def call(self, method: str, data: bytes) -> bytes:
        """Returns the response message as bytes. data: the request message. Raises EmberlineError."""


class LocalGrpcControl(SharedMemoryCalls, SettingsCalls):
    """Answers from the repository of this process, on one event loop."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._control = ControlCalls()

    async def call(self, method: str, data: bytes) -> bytes:
        """See GrpcControl."""
        message = message_class(method)
        handle = getattr(self, method, None)
        if message is None or handle is None:
            raise Unsupported(f"{method} is not supported by this server")
        answer = await handle(read_message(message, data))
        return bytes(answer.SerializeToString(deterministic=True))

    async def ServerLive(self, request: Any) -> Any:  # noqa: N802
        """Returns whether the process answers, so that a restart would not help."""
        return service_pb2.ServerLiveResponse(live=self._repository.is_live())

    async def ServerReady(self, request: Any) -> Any:  # noqa: N802
        """Returns whether models are loaded."""
        return service_pb2.ServerReadyResponse(ready=self._repository.probes.answer())

    async def ModelReady(self, request: Any) -> Any:  # noqa: N802
        """Returns whether one model is loaded; false for a model that does not exist."""
        return service_pb2.ModelReadyResponse(ready=self._repository.is_model_ready(request.name, request.version))

    async def ServerMetadata(self, request: Any) -> Any:  # noqa: N802
        """Returns the server's name, version and extensions."""
        return metadata.server_metadata()

    async def ModelMetadata(self, request: Any) -> Any:  # noqa: N802
        """Returns a model's inputs and outputs."""
        model = self._repository.get(request.name, request.version)
        return metadata.model_metadata(model, self._repository.versions(request.name))

    async def ModelConfig(self, request: Any) -> Any:  # noqa: N802
        """Returns the completed config.pbtxt."""
        return service_pb2.ModelConfigResponse(config=self._repository.get(request.name, request.version).proto)

    async def ModelStatistics(self, request: Any) -> Any:  # noqa: N802
        """Returns counts and times of one model, or of all where the request names none."""
        if not request.name:
            return metadata.model_statistics(await self._control.run(lambda: self._repository.answerers()))
        if not request.version:
            return metadata.model_statistics(self._repository.loaded_versions(request.name))
        return metadata.model_statistics([self._repository.get(request.name, request.version)])

    async def ModelExplain(self, request: Any) -> Any:  # noqa: N802
        """Returns why a row of a request has its score."""
        found = await self._control.run(lambda: explain_message(self._repository, request))
        answer = service_pb2.ModelInferResponse(model_name=request.model_name)
        answer.outputs.add(name="explanation", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
            dump_json(found)
        )
        return answer

    async def RepositoryIndex(self, request: Any) -> Any:  # noqa: N802
        """Returns every model version and its state."""
        _check_repository(request)
        return metadata.repository_index(await self._control.run(self._repository.index), ready_only=request.ready)

    async def RepositoryModelLoad(self, request: Any) -> Any:  # noqa: N802
        """Loads a model, or the new versions and deltas in its folder."""
        _check_repository(request)
        check_load_parameters(_parameters(request))
        await self._control.run(lambda: self._repository.load(request.model_name))
        return service_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any) -> Any:  # noqa: N802
        """Drains and closes a model."""
        _check_repository(request)
        check_unload_parameters(_parameters(request))
        await self._control.run(lambda: self._repository.unload(request.model_name))
        return service_pb2.RepositoryModelUnloadResponse()


def message_class(method: str) -> Any:
    """Returns the class of the requests of a method; None for one that is not there."""
    found = SERVICE.methods_by_name.get("ModelInfer" if method == EXPLAIN else method)
    return None if found is None else GetMessageClass(found.input_type)


def read_message(message: Any, data: bytes) -> Any:
    """Parses bytes as a message. Raises InvalidInput."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"the request is not a message of this call: {error}") from None


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise InvalidInput("repository_name is not supported: there is one repository", field="repository_name")


def _parameters(request: Any) -> dict[str, Any]:
    """Returns the parameters of a repository call; one that is not set is None."""
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        for key, value in request.parameters.items()
    }
