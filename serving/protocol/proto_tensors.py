"""Converts the KServe v2 inference request and response of gRPC, in tritonclient's own protobuf messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from serving.protocol.binary_tensors import SharedInputs, decode_binary_tensor, encode_binary
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.json_tensors import bytes_values
from serving.protocol.outputs import output_values, requested_output
from serving.protocol.regions import Regions, region_part
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
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def proto_parameters(message: Any) -> dict[str, Any]:
    """Returns the parameters of a ModelInferRequest, for which no model is needed. Raises InvalidInput, Unsupported."""
    parameters = _scalars(message.parameters) if message.parameters else {}
    check_parameters("the request", parameters)
    return parameters


def decode_proto_request(
    signature: ModelSignature, message: Any, parameters: dict[str, Any], regions: Regions
) -> InferRequest:
    """Reads a ModelInferRequest. parameters: its own, as `proto_parameters` returns them.

    Raises InvalidInput naming the field at fault.
    """
    raw = message.raw_input_contents
    used = 0
    shared: SharedInputs | None = None
    tensors: dict[str, WireTensor] = {}
    for entry in message.inputs:
        name = entry.name
        declared = signature.input(name)
        if name in tensors:
            raise InvalidInput(f"input {name!r} stands twice in the request", field=name)
        declared.check_dtype(entry.datatype)
        shape, count = checked_shape(name, entry.shape)
        part = None
        if entry.parameters:
            given = _scalars(entry.parameters)
            check_parameters(f"input {name!r}", given)
            part = region_part(f"input {name!r}", given)
        if part is not None:
            if entry.HasField("contents"):
                raise InvalidInput(f"input {name!r}: is in shared memory and in the request; send one", field=name)
            shared = shared or SharedInputs(regions)
            tensors[name] = shared.tensor(name, entry.datatype, shape, count, part)
        elif raw:
            if entry.HasField("contents"):
                raise InvalidInput(
                    f"input {name!r} has both contents and raw_input_contents; send one of them", field=name
                )
            if used == len(raw):
                raise _raw_count_error(message)
            tensors[name] = decode_binary_tensor(name, entry.datatype, shape, count, raw[used])
            used += 1
        else:
            tensors[name] = _from_contents(entry, shape, count)
    if used != len(raw):
        raise _raw_count_error(message)
    return InferRequest(
        tensors,
        _requested_outputs(signature, message, regions),
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
    regions: Regions,
) -> Any:
    """Builds the ModelInferResponse; its tensors are sent as raw_output_contents, or written to shared memory.

    raw_output_contents has an entry for each output: an empty one for those in shared memory, as clients count them.
    Raises InvalidInput where one does not fit its shared memory.
    """
    response = service_pb2.ModelInferResponse(model_name=signature.model, model_version=version, id=request.id)
    _fill_parameters(response.parameters, parameters)
    for wanted in request.outputs:
        name, dtype, values = output_values(signature, wanted, outputs)
        entry = response.outputs.add(name=name, datatype=dtype, shape=values.shape)
        content = encode_binary(values)
        if wanted.part is not None:
            regions.write(wanted.part, content)
            _fill_parameters(entry.parameters, wanted.part.parameters(len(content)))
            content = b""
        response.raw_output_contents.append(content)
    return response


def parameter_fields(parameters: dict[str, Any]) -> bytes:
    """Returns the parameters of a response as they stand in a serialized ModelInferResponse."""
    response = service_pb2.ModelInferResponse()
    _fill_parameters(response.parameters, parameters)
    return bytes(response.SerializeToString())


def _fill_parameters(message: Any, parameters: dict[str, Any]) -> None:
    for key, value in parameters.items():
        if type(value) is int:
            message[key].int64_param = value
        else:
            message[key].string_param = value


def _raw_count_error(message: Any) -> InvalidInput:
    return InvalidInput(
        f"raw_input_contents has {len(message.raw_input_contents)} entries for {len(message.inputs)} inputs; send one "
        "for each that is not in shared memory, in order",
        field="raw_input_contents",
    )


def _from_contents(entry: Any, shape: tuple[int, ...], count: int) -> WireTensor:
    name, dtype = entry.name, entry.datatype
    field = _CONTENTS.get(dtype)
    if field is None:
        raise InvalidInput(f"input {name!r}: {dtype} travels in raw_input_contents only", field=name)
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
    try:
        return WireTensor(name, dtype, shape, np.array(given, WIRE_TYPES[dtype].numpy))
    except OverflowError:
        limits = np.iinfo(WIRE_TYPES[dtype].numpy)
        raise InvalidInput(
            f"input {name!r}: a value is outside {dtype}, which holds {limits.min} to {limits.max}", field=name
        ) from None


def _requested_outputs(signature: ModelSignature, message: Any, regions: Regions) -> list[RequestedOutput]:
    if not message.outputs:
        return [RequestedOutput(index, True) for index in range(len(signature.outputs))]
    chosen: dict[int, RequestedOutput] = {}
    for entry in message.outputs:
        place = signature.output(entry.name)
        given = _scalars(entry.parameters) if entry.parameters else {}
        check_parameters(f"output {entry.name!r}", given)
        chosen.setdefault(place, requested_output(signature, place, given, regions, binary=True))
    return list(chosen.values())


def _scalars(parameters: Any) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in parameters.items()
    }
