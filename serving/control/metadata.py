"""Builds the messages in which the server describes itself and its models.

HTTP sends these messages as JSON, gRPC as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2

from serving.engine.statistics import STAGES, BatchTimes, Duration
from serving.protocol.proto_json import message_to_json
from serving.version import server_version

if TYPE_CHECKING:
    from serving.repository.model_repository import Answerer, VersionEntry

SERVER_NAME = "emberline"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
)
PLATFORM = "emberline"
COLUMN_PARAMETERS = ("column", "column_type", "unit", "flatten")


def server_metadata() -> Any:
    """Returns the name, version and protocol extensions of the server."""
    return service_pb2.ServerMetadataResponse(name=SERVER_NAME, version=server_version(), extensions=EXTENSIONS)


def model_metadata(model: Answerer, versions: Iterable[str]) -> Any:
    """Returns the inputs and outputs of a model; shapes have the batch first, where there is one, and -1 where free."""
    batch = (-1,) if model.signature.max_batch_size else ()
    answer = service_pb2.ModelMetadataResponse(name=model.name, versions=versions, platform=PLATFORM)
    for entry in model.signature.inputs.values():
        answer.inputs.add(name=entry.name, datatype=entry.dtype, shape=(*batch, *entry.dims))
    for output in model.signature.outputs:
        answer.outputs.add(name=output.name, datatype=output.dtype, shape=(*batch, *output.dims))
    return answer


def model_metadata_json(model: Answerer, versions: Iterable[str]) -> dict[str, Any]:
    """Returns `model_metadata` as HTTP sends it: `parameters` of an input also name the training column that feeds it.

    column: the column's name, where it is not the input's. column_type: what the column held in training. unit: unit of
    integers that are times. flatten: true where the column may hold lists of lists. Keys that the version does not have
    are left out; the gRPC message has no place for them.
    """
    answer = message_to_json(model_metadata(model, versions))
    raw = {entry.name: entry for entry in model.signature.raw}
    for entry in answer["inputs"]:
        spec = raw.get(entry["name"])
        parameters = {key: value for key in COLUMN_PARAMETERS if (value := getattr(spec, key, None))}
        if parameters:
            entry["parameters"] = parameters
    return answer


def repository_index(entries: Iterable[VersionEntry], *, ready_only: bool) -> Any:
    """Returns every model version with its state, and the reason where it is not served."""
    answer = service_pb2.RepositoryIndexResponse()
    for entry in entries:
        if entry.state == "READY" or not ready_only:
            answer.models.add(name=entry.model, version=entry.version, state=entry.state, reason=entry.reason)
    return answer


def model_statistics(models: Iterable[Answerer]) -> Any:
    """Returns counts and times of each model, in Triton's form; those of a canary are added to the rest."""
    answer = service_pb2.ModelStatisticsResponse()
    for model in models:
        arms = list(model.arms.values())
        entry = answer.model_stats.add(
            name=model.name,
            version=model.version,
            last_inference=max(arm.last_inference_ms for arm in arms),
            inference_count=sum(arm.inference_count for arm in arms),
            execution_count=sum(arm.execution_count for arm in arms),
        )
        for stage in STAGES:
            _fill(getattr(entry.inference_stats, stage), [arm.stages[stage] for arm in arms])
        for stage in ("cache_hit", "cache_miss"):
            _fill(getattr(entry.inference_stats, stage), [])
        batches = [arm.batches.copy() for arm in arms]
        for size in sorted(set().union(*batches)):
            times = [found[size] for found in batches if size in found]
            batch = entry.batch_stats.add(batch_size=size)
            for stage in BatchTimes.__slots__:
                _fill(getattr(batch, stage), [getattr(part, stage) for part in times])
    return answer


def _fill(message: Any, durations: Sequence[Duration]) -> None:
    message.SetInParent()
    message.count, message.ns = sum(part.count for part in durations), sum(part.ns for part in durations)
