"""Checks bounds of a message before protobuf parses it, as json_text does for JSON.

Two bytes can be a message within the message, or an entry of a map, for which protobuf makes an object while it holds
the interpreter's lock: 64 MB of them take seconds and gigabytes. Tensors in `raw_input_contents` cost none of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from storage.errors import InvalidInput

# The most fields of a message and the messages in it; each entry of a repeated field counts.
MAX_FIELDS = 1 << 16
# The most bytes of an inference request beside `raw_input_contents`: names, shapes, parameters and typed contents.
MAX_TYPED_BYTES = 2 << 20
# A shorter message is parsed fast enough whatever it contains.
SHORT_MESSAGE_BYTES = 64 << 10
# So many fields are counted on the event loop, within a few milliseconds; if there are more, a thread counts.
_FEW_FIELDS = 4096

_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}
_RAW = 7
# The numbers of fields that hold messages, nested: inputs (with parameters and contents), outputs.
_INFER: Mapping[int, Any] = {5: {4: {}, 5: {}}, 6: {2: {}}}


async def check_message(data: bytes, *, is_inference: bool) -> None:
    """Raises InvalidInput for a message that is over the bounds; protobuf refuses bytes that are not a message."""
    if len(data) <= SHORT_MESSAGE_BYTES:
        return
    within = _INFER if is_inference else {}
    fields, typed = _count(data, within, _FEW_FIELDS)
    if fields > _FEW_FIELDS:
        fields, typed = await asyncio.to_thread(_count, data, within, MAX_FIELDS)
    if fields > MAX_FIELDS:
        raise InvalidInput(
            f"the request has more than {MAX_FIELDS} fields, entries of repeated fields counted each, at most so many "
            "are taken; send tensors as raw_input_contents",
            field="request",
        )
    if is_inference and typed > MAX_TYPED_BYTES:
        raise InvalidInput(
            f"the request has {typed} bytes beside raw_input_contents, at most {MAX_TYPED_BYTES} are taken; send "
            "tensors as raw_input_contents",
            field="request",
        )


def _count(data: bytes, within: Mapping[int, Any], most: int) -> tuple[int, int]:
    """Counts the fields of a message, and its bytes without `raw_input_contents`. Stops soon after `most` fields."""
    fields, raw_bytes = 0, 0
    left: list[tuple[int, int, Mapping[int, Any], bool]] = [(0, len(data), within, True)]
    while left and fields <= most:
        at, end, inside, is_top = left.pop()
        while at < end and fields <= most:
            tag, at = _varint(data, at, end)
            kind = tag & 7
            fields += 1
            if kind == 0:
                _, at = _varint(data, at, end)
            elif kind == _LENGTH_DELIMITED:
                size, at = _varint(data, at, end)
                if at + size > end:
                    break
                number = tag >> 3
                if is_top and number == _RAW:
                    raw_bytes += size
                elif number in inside:
                    left.append((at, at + size, inside[number], False))
                at += size
            elif kind in _FIXED_BYTES:
                at += _FIXED_BYTES[kind]
            else:
                break
    return fields, len(data) - raw_bytes


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            break
        shift += 7
    return value, at
