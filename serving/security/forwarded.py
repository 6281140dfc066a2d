"""Restricts shared memory to clients of this machine: a request that a proxy has passed on may name none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from serving.errors import Forbidden
from serving.protocol.regions import RegionPart, Regions

# Headers in which proxies name the client: RFC 7239, RFC 9110 7.6.3, and their predecessors.
_SIGNS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
_HEADERS = tuple(sign.encode() for sign in _SIGNS)


def forwarded_headers(headers: Mapping[bytes, bytes]) -> str:
    """Returns the header by which a request is known to come from a proxy, "" without one."""
    return next((name.decode() for name in _HEADERS if name in headers), "")


def forwarded_metadata(metadata: Iterable[Any] | None) -> str:
    """Returns the metadata key by which a gRPC call is known to come from a proxy, "" without one."""
    return next((str(key) for key, _ in metadata or () if key in _SIGNS), "")


def refuse_forwarded(sign: str) -> None:
    """Raises Forbidden where there is a sign of a proxy."""
    if sign:
        raise Forbidden(
            "shared memory is for clients on the server's machine, and this request came through a proxy: "
            f"it has {sign!r}"
        )


class ForwardedRegions:
    """Regions of a request that was forwarded: there are regions, and none of them is for it. See Regions."""

    is_empty = False

    def __init__(self, sign: str, max_read: int) -> None:
        self._sign = sign
        self.max_read = max_read

    def check(self, part: RegionPart) -> None:
        """Raises Forbidden."""
        self._refuse()

    def read(self, part: RegionPart) -> memoryview:
        """Raises Forbidden."""
        self._refuse()

    def write(self, part: RegionPart, data: bytes) -> None:
        """Raises Forbidden."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        refuse_forwarded(self._sign)
        raise AssertionError


def regions_for(regions: Regions, sign: str) -> Regions:
    """Returns the regions that a request may name. sign: header of a proxy, "" for none."""
    return ForwardedRegions(sign, regions.max_read) if sign else regions
