"""Answers the calls of Triton's shared memory extensions and of its trace and log settings over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2

from serving.control.calls import ControlCalls
from serving.control.observing_settings import change_log, change_traces, log_settings, trace_settings
from serving.repository.regions import RegionName
from storage.errors import Unsupported

if TYPE_CHECKING:
    from serving.repository.model_repository import ModelRepository


class SharedMemoryCalls:
    """Is a mixin that answers the calls about shared memory. CUDA shared memory is not supported."""

    _repository: ModelRepository
    _control: ControlCalls

    async def SystemSharedMemoryStatus(self, request: Any) -> Any:  # noqa: N802
        """Returns the region of that name, or all regions if the request names none."""
        answer = service_pb2.SystemSharedMemoryStatusResponse()
        for said in self._repository.regions.status(request.name):
            entry = answer.regions[said.name]
            entry.name, entry.key, entry.offset, entry.byte_size = said.name, said.key, said.offset, said.byte_size
        return answer

    async def SystemSharedMemoryRegister(self, request: Any) -> Any:  # noqa: N802
        """Registers a region."""
        said = RegionName(request.name, request.key, request.offset, request.byte_size)
        await self._control.run(lambda: self._repository.regions.register(said))
        return service_pb2.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: N802
        """Unregisters a region, or all regions if the request names none."""
        await self._control.run(lambda: self._repository.regions.unregister(request.name))
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(self, request: Any) -> Any:  # noqa: N802
        """Returns an empty list, because there are no CUDA regions."""
        return service_pb2.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(self, request: Any) -> Any:  # noqa: N802
        """Raises Unsupported."""
        raise Unsupported("CUDA shared memory is not supported; use system shared memory")

    async def CudaSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: N802
        """Does nothing, because there are no CUDA regions."""
        return service_pb2.CudaSharedMemoryUnregisterResponse()


class SettingsCalls:
    """Is a mixin that answers the calls about trace and log settings."""

    _repository: ModelRepository

    async def TraceSetting(self, request: Any) -> Any:  # noqa: N802
        """Returns the trace settings, after the changes that the request asks for."""
        if request.model_name:
            self._repository.get(request.model_name)
        observation = self._repository.observation
        wanted = {key: list(setting.value) for key, setting in request.settings.items()}
        change_traces(observation, wanted, of_model=bool(request.model_name))
        answer = service_pb2.TraceSettingResponse()
        for key, value in trace_settings(observation).items():
            answer.settings[key].value.extend(value if isinstance(value, list) else [value])
        return answer

    async def LogSettings(self, request: Any) -> Any:  # noqa: N802
        """Returns the log settings, after the changes that the request asks for."""
        log_format = self._repository.observation.log_format
        wanted = {key: getattr(s, s.WhichOneof("parameter_choice") or "", None) for key, s in request.settings.items()}
        change_log(log_format, wanted)
        answer = service_pb2.LogSettingsResponse()
        for key, value in log_settings(log_format).items():
            field = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(answer.settings[key], field, value)
        return answer
