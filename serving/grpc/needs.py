"""Lists the permission that each method of GRPCInferenceService needs, by its name and by the request message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serving.security.needs import (
    ABOUT_MODEL,
    EXPLAIN,
    INFER,
    KNOWN,
    LOOK_AT_MODEL,
    LOOK_AT_SERVER,
    MODEL,
    OPEN,
    REGIONS,
    SERVER,
    UNKNOWN,
    Need,
    control_need,
)


def _of_model(message: Any) -> str:
    return str(message.name)


def _of_model_name(message: Any) -> str:
    return str(message.model_name)


@dataclass(frozen=True, slots=True)
class CallNeed:
    """Says which permission a call needs, and which model it is about."""

    need: Need
    #: Returns the model of a message; None where calls are not about one.
    model: Callable[[Any], str] | None = None
    #: The need of a message without a model, where the model may be omitted.
    of_server: Need | None = None
    #: The need of a message that has settings.
    writes: Need | None = None
    #: The need of a message that has settings and no model, where the model may be omitted.
    server_writes: Need | None = None

    @property
    def may_control(self) -> bool:
        """Returns whether it can be a control call."""
        return self.writes is not None or self.need.is_control

    def of(self, message: Any) -> tuple[Need, str]:
        """Returns the need of a message, and its model."""
        model = self.model(message) if self.model is not None else ""
        need, writes = self.need, self.writes
        if self.of_server is not None and not model:
            need, writes = self.of_server, self.server_writes
        return (writes if writes is not None and message.settings else need), model


GRPC_NEEDS: dict[str, CallNeed] = {
    "ServerLive": CallNeed(OPEN),
    "ServerReady": CallNeed(OPEN),
    "ServerMetadata": CallNeed(KNOWN),
    "ModelReady": CallNeed(ABOUT_MODEL, _of_model),
    "ModelMetadata": CallNeed(ABOUT_MODEL, _of_model),
    "ModelConfig": CallNeed(ABOUT_MODEL, _of_model),
    "ModelStatistics": CallNeed(LOOK_AT_MODEL, _of_model, of_server=LOOK_AT_SERVER),
    "ModelInfer": CallNeed(INFER, _of_model_name),
    "ModelStreamInfer": CallNeed(INFER, _of_model_name),
    "ModelExplain": CallNeed(EXPLAIN, _of_model_name),
    "RepositoryIndex": CallNeed(LOOK_AT_SERVER),
    "RepositoryModelLoad": CallNeed(control_need(MODEL, "load"), _of_model_name),
    "RepositoryModelUnload": CallNeed(control_need(MODEL, "unload"), _of_model_name),
    "SystemSharedMemoryStatus": CallNeed(REGIONS),
    "SystemSharedMemoryRegister": CallNeed(REGIONS),
    "SystemSharedMemoryUnregister": CallNeed(REGIONS),
    "CudaSharedMemoryStatus": CallNeed(REGIONS),
    "CudaSharedMemoryRegister": CallNeed(REGIONS),
    "CudaSharedMemoryUnregister": CallNeed(REGIONS),
    "TraceSetting": CallNeed(
        LOOK_AT_MODEL,
        _of_model_name,
        of_server=LOOK_AT_SERVER,
        writes=control_need(MODEL, "trace"),
        server_writes=control_need(SERVER, "trace"),
    ),
    "LogSettings": CallNeed(LOOK_AT_SERVER, writes=control_need(SERVER, "logging")),
}
# The need of a method that this server does not have.
UNKNOWN_CALL = CallNeed(UNKNOWN)
