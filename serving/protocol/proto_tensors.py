"""The KServe v2 inference request and response over gRPC, in tritonclient's own protobuf messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from serving.protocol.binary_tensors import decode_binary_tensor, encode_binary
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.json_tensors import bytes_values
from serving.protocol.signature import ModelSignature
from serving.protocol.tensors import (
    InferRequest,
    RequestedOutput,
    WireTensor,
    check_parameters,
    checked_id,
    checked_shape,
    element_count_error,
    request_priority,
    request_timeout_us,
)
from storage.errors import InvalidInput

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def proto_parameters(message: Any) -> dict[str, Any]:
    """The parameters of a ModelInferRequest; no model is needed for them. Raises InvalidInput, Unsupported."""
    parameters = _scalars(message.parameters) if message.parameters else {}
    check_parameters("the request", parameters)
    return parameters


def decode_proto_request(signature: ModelSignature, message: Any, parameters: dict[str, Any]) -> InferRequest:
    """Reads a ModelInferRequest. parameters: its own, as `proto_parameters` gives them.

    Raises InvalidInput naming the field at fault.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs; send one each, in order",
            field="raw_input_contents",
        )
    tensors: dict[str, WireTensor] = {}
    for index, entry in enumerate(message.inputs):
        name = entry.name
        declared = signature.input(name)
        if name in tensors:
            raise InvalidInput(f"input {name!r} stands twice in the request", field=name)
        declared.check_dtype(entry.datatype)
        shape, count = checked_shape(name, entry.shape)
        if entry.parameters:
            check_parameters(f"input {name!r}", _scalars(entry.parameters))
        if raw:
            if entry.HasField("contents"):
                raise InvalidInput(
                    f"input {name!r} has both contents and raw_input_contents; send one of them", field=name
                )
            tensors[name] = decode_binary_tensor(name, entry.datatype, shape, count, raw[index])
        else:
            tensors[name] = _from_contents(entry, shape, count)
    return InferRequest(
        tensors,
        _requested_outputs(signature, message),
        checked_id(message.id),
        request_timeout_us(parameters) if parameters else 0,
        request_priority(parameters) if parameters else 0,
        parameters,
    )


def encode_proto_response(
    signature: ModelSignature,
    version: str,
    request: InferRequest,
    outputs: list[np.ndarray],
    parameters: dict[str, Any],
) -> Any:
    """The ModelInferResponse; its tensors always travel as raw_output_contents."""
    response = service_pb2.ModelInferResponse(model_name=signature.model, model_version=version, id=request.id)
    for key, value in parameters.items():
        if type(value) is int:
            response.parameters[key].int64_param = value
        else:
            response.parameters[key].string_param = value
    for wanted in request.outputs:
        values = outputs[wanted.index]
        response.outputs.add(
            name=signature.output_names[wanted.index],
            datatype=signature.outputs[wanted.index].dtype,
            shape=values.shape,
        )
        response.raw_output_contents.append(encode_binary(values))
    return response


def _from_contents(entry: Any, shape: tuple[int, ...], count: int) -> WireTensor:
    name, dtype = entry.name, entry.datatype
    field = _CONTENTS[dtype]
    for descriptor, _ in entry.contents.ListFields():
        if descriptor.name != field:
            raise InvalidInput(
                f"input {name!r}: {dtype} travels in contents.{field}, got contents.{descriptor.name}", field=name
            )
    given = getattr(entry.contents, field)
    if len(given) != count:
        raise element_count_error(name, shape, count, len(given))
    if dtype == "BYTES":
        return WireTensor(name, dtype, shape, bytes_values(list(given)))
    return WireTensor(name, dtype, shape, np.array(given, WIRE_TYPES[dtype].numpy))


def _requested_outputs(signature: ModelSignature, message: Any) -> list[RequestedOutput]:
    if not message.outputs:
        return [RequestedOutput(index, True) for index in range(len(signature.outputs))]
    chosen: dict[int, RequestedOutput] = {}
    for entry in message.outputs:
        place = signature.output(entry.name)
        if entry.parameters:
            check_parameters(f"output {entry.name!r}", _scalars(entry.parameters))
        chosen.setdefault(place, RequestedOutput(place, True))
    return list(chosen.values())


def _scalars(parameters: Any) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in parameters.items()
    }
