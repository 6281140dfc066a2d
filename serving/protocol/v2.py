"""Converts the KServe v2 request and response of HTTP: a JSON header with tensors in it, or as bytes after it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.protocol.binary_tensors import SharedInputs, decode_binary_tensor, encode_binary
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.json_tensors import bytes_values, decode_json_tensor, encode_json
from serving.protocol.json_text import dump_json, dump_json_with_nan, parse_object
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


@dataclass(slots=True)
class RequestHeader:
    """Holds a request whose JSON is parsed and whose tensors are not: enough to choose the model to decode it for."""

    content: dict[str, Any]
    parameters: dict[str, Any]
    #: The bytes after the JSON, a view of the body.
    tail: memoryview
    #: Whether there is no JSON and the whole body is the one input.
    is_raw: bool = False


def read_header(body: bytes, header_length: int | None) -> RequestHeader:
    """Parses the JSON of a request's body, for which no model is needed. Ignores keys that are not in the protocol.

    header_length: bytes of JSON at its start, followed by binary tensors; None when all of it is JSON; 0 for a body
    that is the bytes of a model's only input.
    Raises InvalidInput naming the field at fault, Unsupported for sequences.
    """
    view = memoryview(body)
    if header_length is None:
        header_length = len(view)
    elif header_length == 0:
        return RequestHeader({}, {}, view, is_raw=True)
    elif not 0 < header_length <= len(view):
        raise InvalidInput(
            f"Inference-Header-Content-Length is {header_length}, but the body has {len(view)} bytes",
            field="Inference-Header-Content-Length",
        )
    header = parse_object(body if header_length == len(view) else view[:header_length], what="the request")
    return RequestHeader(header, _parameters("the request", header), view[header_length:])


def parse_header_length(text: bytes | None) -> int | None:
    """Returns the number in the header Inference-Header-Content-Length; None without it. Raises InvalidInput."""
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise InvalidInput(
            f"Inference-Header-Content-Length must be a number of bytes, got {text[:40].decode('latin-1')!r}",
            field="Inference-Header-Content-Length",
        )
    return int(text)


def decode_request(signature: ModelSignature, header: RequestHeader, regions: Regions) -> InferRequest:
    """Reads the tensors and the requested outputs of a request. Raises InvalidInput naming the field at fault."""
    content, parameters = header.content, header.parameters
    if header.is_raw:
        tensor = _raw_tensor(signature, header.tail)
        outputs = [RequestedOutput(index, True) for index in range(len(signature.outputs))]
        return InferRequest({tensor.name: tensor}, outputs)
    tensors = _decode_inputs(signature, content.get("inputs"), header.tail, regions)
    outputs = _decode_outputs(signature, content.get("outputs"), parameters, regions)
    request_id = content.get("id")
    return InferRequest(
        tensors,
        outputs,
        "" if request_id is None else checked_id(request_id),
        request_timeout_us(parameters) if parameters else 0,
        request_priority(parameters) if parameters else 0,
        parameters,
    )


def encode_response(
    signature: ModelSignature,
    version: str,
    request: InferRequest,
    outputs: list[np.ndarray],
    parameters: dict[str, Any],
    regions: Regions,
) -> tuple[bytes, int | None]:
    """Returns the response's body and, when tensors follow the JSON as bytes, the length of the JSON.

    Writes outputs for shared memory there. Raises InvalidInput if one does not fit, or has no form in JSON.
    """
    described: list[dict[str, Any]] = []
    sections: list[bytes] = []
    has_nan = False
    for wanted in request.outputs:
        name, dtype, values = output_values(signature, wanted, outputs)
        entry: dict[str, Any] = {"name": name, "datatype": dtype, "shape": values.shape}
        if wanted.part is not None:
            # No parameters, as in Triton, whose C++ client would take any parameters for a size in the body.
            regions.write(wanted.part, encode_binary(values))
        elif wanted.binary:
            section = encode_binary(values)
            sections.append(section)
            entry["parameters"] = {"binary_data_size": len(section)}
        else:
            entry["data"] = encode_json(name, dtype, values)
            has_nan = has_nan or (values.dtype.kind == "f" and not np.isfinite(values).all())
        described.append(entry)
    header: dict[str, Any] = {"id": request.id} if request.id else {}
    header["model_name"] = signature.model
    header["model_version"] = version
    header["parameters"] = parameters
    header["outputs"] = described
    text = dump_json_with_nan(header) if has_nan else dump_json(header)
    if not sections:
        return text, None
    return b"".join([text, *sections]), len(text)


def _decode_inputs(signature: ModelSignature, inputs: Any, tail: memoryview, regions: Regions) -> dict[str, WireTensor]:
    if type(inputs) is not list:
        what = "is missing" if inputs is None else f"must be a list, got {type(inputs).__name__}"
        raise InvalidInput(f"'inputs' {what}", field="inputs")
    tensors: dict[str, WireTensor] = {}
    shared: SharedInputs | None = None
    position = 0
    for index, entry in enumerate(inputs):
        if type(entry) is not dict or type(entry.get("name")) is not str:
            raise InvalidInput(f"inputs[{index}] must be an object with a string 'name'", field="inputs")
        name = entry["name"]
        declared = signature.input(name)
        if name in tensors:
            raise InvalidInput(f"input {name!r} stands twice in the request", field=name)
        dtype = entry.get("datatype")
        if type(dtype) is not str:
            raise InvalidInput(f"input {name!r}: 'datatype' must be one of {', '.join(WIRE_TYPES)}", field=name)
        declared.check_dtype(dtype)
        claimed = entry.get("shape")
        if type(claimed) is not list:
            raise InvalidInput(f"input {name!r}: 'shape' must be a list of integers", field=name)
        shape, count = checked_shape(name, claimed)
        given = _parameters(f"input {name!r}", entry)
        size = given.get("binary_data_size")
        part = region_part(f"input {name!r}", given)
        if part is not None:
            if size is not None or "data" in entry:
                raise InvalidInput(f"input {name!r}: is in shared memory and in the request; send one", field=name)
            shared = shared or SharedInputs(regions)
            tensors[name] = shared.tensor(name, dtype, shape, count, part)
            continue
        if size is None:
            if "data" not in entry:
                raise InvalidInput(
                    f"input {name!r} has neither 'data' nor 'binary_data_size' nor 'shared_memory_region'", field=name
                )
            tensors[name] = decode_json_tensor(name, dtype, shape, count, entry["data"])
            continue
        if "data" in entry:
            raise InvalidInput(f"input {name!r} has both 'data' and 'binary_data_size'; send one", field=name)
        if type(size) is not int or not 0 <= size <= len(tail) - position:
            raise InvalidInput(
                f"input {name!r}: binary_data_size is {str(size)[:40]}, but {len(tail) - position} bytes are left",
                field=name,
            )
        tensors[name] = decode_binary_tensor(name, dtype, shape, count, tail[position : position + size])
        position += size
    if position != len(tail):
        raise InvalidInput(
            f"the body holds {len(tail) - position} bytes more than its inputs' binary_data_size say", field="body"
        )
    return tensors


def _raw_tensor(signature: ModelSignature, body: memoryview) -> WireTensor:
    """Reads a body without JSON as the model's only input: one row; its length determines a free dimension."""
    inputs = [entry for entry in signature.inputs.values() if entry.role == "value"]
    if len(inputs) != 1:
        raise InvalidInput(
            f"a body without JSON is one input, but model {signature.model!r} has {len(inputs)}; send JSON before it",
            field="Inference-Header-Content-Length",
        )
    (entry,) = inputs
    item = WIRE_TYPES[entry.dtype].item_bytes
    dims = [*((1,) if signature.max_batch_size else ()), *entry.dims]
    if item == 0:
        # The body is one string, without a length before it.
        shape = tuple(1 if size < 0 else size for size in dims)
        if math.prod(shape) != 1:
            raise element_count_error(entry.name, shape, math.prod(shape), 1)
        return WireTensor(entry.name, entry.dtype, shape, bytes_values([bytes(body)]))
    free = [place for place, size in enumerate(dims) if size < 0]
    known = math.prod(size for size in dims if size >= 0) * item
    if len(free) > 1:
        raise InvalidInput(
            f"input {entry.name!r}: {len(free)} of its dimensions are free; a body without JSON does not say its shape",
            field=entry.name,
        )
    if free:
        dims[free[0]] = len(body) // known if known else 0
    return decode_binary_tensor(entry.name, entry.dtype, tuple(dims), math.prod(dims), body)


def _decode_outputs(
    signature: ModelSignature, outputs: Any, parameters: dict[str, Any], regions: Regions
) -> list[RequestedOutput]:
    all_binary = parameters.get("binary_data_output", False)
    if type(all_binary) is not bool:
        raise InvalidInput("parameter 'binary_data_output' must be true or false", field="binary_data_output")
    if not outputs:
        if outputs is not None and type(outputs) is not list:
            raise InvalidInput(f"'outputs' must be a list, got {type(outputs).__name__}", field="outputs")
        return [RequestedOutput(index, all_binary) for index in range(len(signature.outputs))]
    if type(outputs) is not list:
        raise InvalidInput(f"'outputs' must be a list, got {type(outputs).__name__}", field="outputs")
    chosen: dict[int, RequestedOutput] = {}
    for index, entry in enumerate(outputs):
        if type(entry) is not dict or type(entry.get("name")) is not str:
            raise InvalidInput(f"outputs[{index}] must be an object with a string 'name'", field="outputs")
        name = entry["name"]
        place = signature.output(name)
        given = _parameters(f"output {name!r}", entry)
        binary = given.get("binary_data", all_binary)
        if type(binary) is not bool:
            raise InvalidInput(f"output {name!r}: 'binary_data' must be true or false", field=name)
        chosen.setdefault(place, requested_output(signature, place, given, regions, binary=binary))
    return list(chosen.values())


def _parameters(where: str, holder: dict[str, Any]) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise InvalidInput(f"{where}: 'parameters' must be an object", field="parameters")
    check_parameters(where, parameters)
    return parameters
