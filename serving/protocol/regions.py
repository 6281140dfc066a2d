"""Describes tensors in system shared memory: the part of a region that holds one, and the access to regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from storage.errors import InvalidInput

_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(frozen=True, slots=True)
class RegionPart:
    """Names `size` bytes of a registered region, from `offset` on."""

    region: str
    offset: int
    size: int

    def parameters(self, size: int) -> dict[str, Any]:
        """Returns the response's parameters of an output that took `size` bytes of this part."""
        said: dict[str, Any] = {_REGION: self.region, _SIZE: size}
        if self.offset:
            said[_OFFSET] = self.offset
        return said


class Regions(Protocol):
    """Gives access to the regions that clients have registered."""

    @property
    def is_empty(self) -> bool:
        """Returns whether there are no regions."""

    @property
    def max_read(self) -> int:
        """Returns how many bytes of regions the inputs of one request may have together."""

    def check(self, part: RegionPart) -> None:
        """Raises InvalidInput when the part does not exist."""

    def read(self, part: RegionPart) -> memoryview:
        """Returns a copy of the part's bytes, which later writes of the client do not change.

        Raises InvalidInput, Overloaded.
        """

    def write(self, part: RegionPart, data: bytes) -> None:
        """Writes bytes at the start of the part. Raises InvalidInput when they do not fit."""


def region_part(where: str, parameters: Mapping[str, Any]) -> RegionPart | None:
    """Returns the part that the parameters of an input or output name, or None. Raises InvalidInput."""
    if _REGION not in parameters:
        if _OFFSET in parameters or _SIZE in parameters:
            raise InvalidInput(f"{where}: {_SIZE} and {_OFFSET} come with {_REGION}, which is missing", field=_REGION)
        return None
    region = parameters[_REGION]
    if type(region) is not str or not region:
        raise InvalidInput(f"{where}: {_REGION} must be the name of a region", field=_REGION)
    if _SIZE not in parameters:
        raise InvalidInput(f"{where}: {_SIZE} is missing beside {_REGION}", field=_SIZE)
    for key in (_SIZE, _OFFSET):
        value = parameters.get(key, 0)
        if type(value) is not int or not 0 <= value < 2**63:
            raise InvalidInput(f"{where}: {key} must be a number of bytes, got {str(value)[:40]!r}", field=key)
    return RegionPart(region, parameters.get(_OFFSET, 0), parameters[_SIZE])
