"""Tensors in system shared memory: where in a region one lies, and what a decoder needs to get at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from storage.errors import InvalidInput

_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(frozen=True, slots=True)
class RegionPart:
    """`size` bytes of a registered region, from `offset` on."""

    region: str
    offset: int
    size: int

    def parameters(self, size: int) -> dict[str, Any]:
        """What a response says of an output that took `size` bytes of it."""
        said: dict[str, Any] = {_REGION: self.region, _SIZE: size}
        if self.offset:
            said[_OFFSET] = self.offset
        return said


class Regions(Protocol):
    """The regions that clients have registered. On one event loop.

    is_stale: others are known now than `refresh` has heard of.
    """

    @property
    def is_stale(self) -> bool:
        """Whether `refresh` has to be called before parts are read or written."""

    @property
    def is_empty(self) -> bool:
        """Whether there is none, as far as `refresh` has heard."""

    async def refresh(self) -> None:
        """Learns of what was registered and unregistered."""

    @property
    def max_read(self) -> int:
        """How many bytes the inputs of one request may have there together."""

    def check(self, part: RegionPart) -> None:
        """Raises InvalidInput when there is no such part."""

    def read(self, part: RegionPart) -> memoryview:
        """A copy of its bytes: what the client writes later does not reach it. Raises InvalidInput, Overloaded."""

    def write(self, part: RegionPart, data: bytes) -> None:
        """Puts bytes at its start. Raises InvalidInput when they do not fit."""


def region_part(where: str, parameters: Mapping[str, Any]) -> RegionPart | None:
    """What the parameters of an input or output say of shared memory; None for nothing. Raises InvalidInput."""
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
