"""Builds the schemas of the OpenAPI document from the protobuf messages and pydantic models that the server uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from pydantic.json_schema import models_json_schema

from serving.control.bodies import ControlBody
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.tensors import MAX_ID_LENGTH, MAX_RANK

Schema = dict[str, Any]
# A schema, or its source: a protobuf message, a pydantic model, or a list with one shape for its items.
Shape = Schema | type[Message] | type[ControlBody] | list["Shape"] | None

_PREFIX = "#/components/schemas/"
_INTEGERS = frozenset(getattr(FieldDescriptor, f"CPPTYPE_{name}") for name in ("INT32", "INT64", "UINT32", "UINT64"))
_NUMBERS = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})


def ref(name: str) -> Schema:
    """Returns a reference to a schema of the document."""
    return {"$ref": _PREFIX + name}


ANY_OBJECT: Schema = {"type": "object"}
# Clients may send keys that the protocol does not have, which are ignored; KServe's own client sends `model_name`.
_OPEN: Schema = {"additionalProperties": True}


def array(items: Schema) -> Schema:
    """Returns the schema of a list."""
    return {"type": "array", "items": items}


def closed(properties: dict[str, Schema], required: Iterable[str] = ()) -> Schema:
    """Returns the schema of an object with no other keys than `properties`."""
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(required),
        "additionalProperties": False,
    }


def message_schemas(descriptors: Iterable[Descriptor]) -> dict[str, Schema]:
    """Returns schemas of messages and all messages in them, as `message_to_json` writes them, by message name."""
    found: dict[str, Schema] = {}
    waiting = list(descriptors)
    while waiting:
        descriptor = waiting.pop()
        name = message_name(descriptor)
        if name in found:
            continue
        properties = {field.name: _field(field, waiting) for field in descriptor.fields}
        always = [field.name for field in descriptor.fields if field.is_repeated or not field.has_presence]
        found[name] = closed(properties, always)
    return dict(sorted(found.items()))


def schema_of(shape: Shape) -> Schema:
    """Returns the schema of a request's or a response's content."""
    if isinstance(shape, dict):
        return shape
    if isinstance(shape, list):
        return array(schema_of(shape[0]))
    assert shape is not None
    descriptor = getattr(shape, "DESCRIPTOR", None)
    return ref(shape.__name__ if descriptor is None else message_name(descriptor))


def types_of(shapes: Iterable[Shape]) -> Iterator[type[Message] | type[ControlBody]]:
    """Yields the messages and pydantic models among some shapes."""
    for shape in shapes:
        if isinstance(shape, list):
            yield from types_of(shape)
        elif isinstance(shape, type):
            yield shape


def message_name(descriptor: Descriptor) -> str:
    """Returns the name of a message's schema."""
    return str(descriptor.full_name.removeprefix("inference."))


def body_schemas(bodies: Iterable[type[ControlBody]]) -> dict[str, Schema]:
    """Returns the schemas of control calls' bodies by class name."""
    _, whole = models_json_schema([(body, "validation") for body in bodies], ref_template=_PREFIX + "{model}")
    return dict(sorted(whole["$defs"].items()))


def inference_schemas() -> dict[str, Schema]:
    """Returns the schemas of inference requests and responses, v2 and v1, and of their parts."""
    text: Schema = {"type": "string"}
    parameters = ref("Parameters")
    rows = {"type": "integer", "minimum": 0}
    shape = array(rows) | {"minItems": 1, "maxItems": MAX_RANK}
    tensor = {"name": text, "shape": shape, "datatype": ref("Datatype"), "parameters": parameters, "data": ref("Data")}
    output = {**tensor, "shape": array(rows)}
    scalar = {"type": ["string", "integer", "number", "boolean", "null"]}
    return {
        "Error": closed({"error": text | {"description": "what was expected, what came, and what to do"}}, ["error"]),
        "Datatype": {"type": "string", "enum": list(WIRE_TYPES)},
        "Data": array({"anyOf": [scalar, ref("Data")]})
        | {"description": "flat or nested as the shape says, row-major; null marks a missing value"},
        "Parameters": {
            "type": "object",
            "additionalProperties": scalar,
            "description": "of a request: timeout (microseconds), priority, min_snapshot, routing_key, "
            "binary_data_output; of an input: binary_data_size, or shared_memory_region, shared_memory_offset and "
            "shared_memory_byte_size; of an output: binary_data, classification, or the same of shared memory",
        },
        "InferInput": closed(tensor, ["name", "shape", "datatype"]) | _OPEN,
        "RequestedOutput": closed({"name": text, "parameters": parameters}, ["name"]) | _OPEN,
        "InferRequest": closed(
            {
                "id": {"type": ["string", "null"], "maxLength": MAX_ID_LENGTH},
                "parameters": {"anyOf": [parameters, {"type": "null"}]},
                "inputs": array(ref("InferInput")),
                "outputs": {"anyOf": [array(ref("RequestedOutput")), {"type": "null"}]},
            },
            ["inputs"],
        )
        | _OPEN,
        "InferOutput": closed(output, ["name", "shape", "datatype"]),
        "InferResponse": closed(
            {
                "id": text,
                "model_name": text,
                "model_version": text,
                "parameters": parameters,
                "outputs": array(ref("InferOutput")),
            },
            ["model_name", "model_version", "outputs"],
        ),
        "PredictRequest": {
            "oneOf": [
                closed({"instances": array({"type": "object"}), "signature_name": {}}, ["instances"]),
                closed(
                    {"inputs": {"type": "object", "additionalProperties": {"type": "array"}}, "signature_name": {}},
                    ["inputs"],
                ),
            ]
        },
        "PredictResponse": {
            "oneOf": [
                closed({"predictions": {"type": "array"}}, ["predictions"]),
                closed({"outputs": {"type": "object", "additionalProperties": {"type": "array"}}}, ["outputs"]),
            ]
        },
    }


def _field(field: FieldDescriptor, waiting: list[Descriptor]) -> Schema:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _single(entry.fields_by_name["value"], waiting)}
    single = _single(field, waiting)
    return array(single) if field.is_repeated else single


def _single(field: FieldDescriptor, waiting: list[Descriptor]) -> Schema:
    if field.message_type is not None:
        waiting.append(field.message_type)
        return ref(message_name(field.message_type))
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    kind = field.cpp_type
    if kind in _INTEGERS:
        return {"type": "integer"}
    if kind in _NUMBERS:
        return {"type": "number"}
    return {"type": "boolean"} if kind == FieldDescriptor.CPPTYPE_BOOL else {"type": "string"}
