"""Converts protobuf messages to JSON as Triton's HTTP side does: proto field names, numeric integers, and defaults."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor


def message_to_json(message: Any) -> dict[str, Any]:
    """Returns the message as JSON values. Omits messages that are not set, and the unset fields of a oneof."""
    return {
        field.name: _value(message, field)
        for field in message.DESCRIPTOR.fields
        if field.is_repeated or not field.has_presence or message.HasField(field.name)
    }


def _value(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _single(field, value)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        inner = entry.fields_by_name["value"]
        return {str(key): _single(inner, value[key]) for key in sorted(value)}
    return [_single(field, item) for item in value]


def _single(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return message_to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
