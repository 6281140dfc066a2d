"""Converts tensors from and to bytes: little-endian, row-major, BYTES elements after a 32-bit length.

Avoids copies where it can.
"""

from __future__ import annotations

import numpy as np

from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.regions import RegionPart, Regions
from serving.protocol.tensors import WireTensor, byte_count_error
from storage.errors import InvalidInput
from storage.features import Column

LENGTH_BYTES = 4


def decode_binary_tensor(
    name: str, dtype: str, shape: tuple[int, ...], count: int, buffer: bytes | memoryview
) -> WireTensor:
    """Views a buffer as a tensor.

    count: the product of `shape`, not trusted: it is compared with the bytes before anything is allocated.
    Raises InvalidInput naming the input when the bytes do not match dtype and shape.
    """
    wire = WIRE_TYPES[dtype]
    size = len(buffer)
    if wire.item_bytes == 0:
        if count * LENGTH_BYTES > size:
            raise InvalidInput(
                f"input {name!r}: BYTES {list(shape)} needs at least {count * LENGTH_BYTES} bytes, "
                f"the request holds {size}",
                field=name,
            )
        try:
            return WireTensor(name, dtype, shape, Column.wire_bytes(buffer, count))
        except InvalidInput as error:
            raise InvalidInput(f"input {name!r}: {error}", field=name) from None
    if count * wire.item_bytes != size:
        raise byte_count_error(name, dtype, shape, count * wire.item_bytes, size)
    if dtype == "BOOL":
        # Any byte but 0 is true; a bool array over other bytes would be undefined behaviour in native code.
        return WireTensor(name, dtype, shape, np.frombuffer(buffer, np.uint8) != 0)
    values = np.frombuffer(buffer, wire.numpy)
    if not values.flags.aligned:
        values = values.copy()
    return WireTensor(name, dtype, shape, values)


class SharedInputs:
    """Reads the inputs of one request that are in shared memory. Together they are bounded as a body is."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._size = 0

    def tensor(self, name: str, dtype: str, shape: tuple[int, ...], count: int, part: RegionPart) -> WireTensor:
        """Reads a part as a tensor, as `decode_binary_tensor` does; a part of the wrong size is not read."""
        wire = WIRE_TYPES[dtype]
        if wire.item_bytes and count * wire.item_bytes != part.size:
            raise byte_count_error(name, dtype, shape, count * wire.item_bytes, part.size)
        self._size += part.size
        if self._size > self._regions.max_read:
            raise InvalidInput(
                f"input {name!r}: over {self._regions.max_read} bytes of shared memory in one request; send smaller "
                "batches, or start the server with a larger max_body_bytes",
                field=name,
            )
        return decode_binary_tensor(name, dtype, shape, count, self._regions.read(part))


def encode_binary(values: np.ndarray) -> bytes:
    """Encodes an output as wire bytes. values: an array of bytes objects for BYTES."""
    if values.dtype != object:
        return values.tobytes()
    parts: list[bytes] = []
    for element in values.reshape(-1).tolist():
        parts += (len(element).to_bytes(LENGTH_BYTES, "little"), element)
    return b"".join(parts)
