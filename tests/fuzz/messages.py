"""Makes and changes Protobuf messages of any kind by walking their descriptors."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tests.fuzz.mutations import FLOATS, INTEGERS, TEXTS, WORDS

_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}
_TEXTS = tuple(text for text in (*TEXTS, *WORDS) if text.isascii() or text == "\u00e9")


def random_message(rng: Random, kind: Any, depth: int = 3) -> Any:
    """Makes a message with some of its fields set.

    kind: the class of the message.
    """
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            _set(rng, message, field, depth)
    return message


def mutate_message(rng: Random, message: Any) -> None:
    """Changes one field somewhere in a message."""
    holders = [message]
    for holder in holders:
        for field, now in holder.ListFields():
            if field.message_type is None or len(holders) > 50:
                continue
            if _is_map(field):
                if field.message_type.fields_by_name["value"].message_type is not None:
                    holders += [now[key] for key in list(now)[:5]]
            else:
                holders += list(now)[:5] if field.is_repeated else [now]
    holder = rng.choice(holders)
    present = [field for field, _ in holder.ListFields()]
    fields = present if present and rng.random() < 0.6 else holder.DESCRIPTOR.fields
    if not fields:
        return
    field = rng.choice(list(fields))
    if rng.random() < 0.2:
        holder.ClearField(field.name)
    else:
        _set(rng, holder, field, 2)


def _set(rng: Random, message: Any, field: Any, depth: int) -> None:
    name = field.name
    if _is_map(field):
        entry = field.message_type.fields_by_name["value"]
        values = getattr(message, name)
        key: str | int = rng.choice(_TEXTS)
        if field.message_type.fields_by_name["key"].type != FieldDescriptor.TYPE_STRING:
            key = rng.choice((0, 1, 7))
        if entry.message_type is None:
            values[key] = _scalar(rng, entry)
        elif depth:
            values[key].SetInParent()
            _fill(rng, values[key], depth - 1)
    elif field.is_repeated:
        values = getattr(message, name)
        if len(values) and rng.random() < 0.5:
            del values[rng.randrange(len(values)) :]
            return
        for _ in range(rng.choice((1, 1, 2, 3, 40))):
            if field.message_type is None:
                values.append(_scalar(rng, field))
            elif depth:
                _fill(rng, values.add(), depth - 1)
    elif field.message_type is not None:
        if depth:
            getattr(message, name).SetInParent()
            _fill(rng, getattr(message, name), depth - 1)
    else:
        setattr(message, name, _scalar(rng, field))


def _fill(rng: Random, message: Any, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            _set(rng, message, field, depth)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _scalar(rng: Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind in _BITS:
        bits, signed = _BITS[kind]
        value = (rng.choice(INTEGERS) if rng.random() < 0.7 else rng.getrandbits(66)) % 2**bits
        return value - 2**bits if signed and value >= 2 ** (bits - 1) else value
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([entry.number for entry in field.enum_type.values])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        return rng.choice([value for value in FLOATS if not 3.5e38 < abs(value) < float("inf")])
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return rng.choice(FLOATS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 4, 8, 9, 100)))
    return rng.choice(_TEXTS)
