"""Reads the id that the head of a request names it by: the header x-request-id, or the metadata key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

#: The header of HTTP, and the metadata key of gRPC.
REQUEST_ID = "x-request-id"
REQUEST_ID_HEADER = REQUEST_ID.encode()

# Visible ASCII without quotes and backslashes can be echoed in a header, in JSON and in a log as it is.
_ID = re.compile(r"[!#-\[\]-~]{1,256}", re.ASCII)


def request_id_of_header(value: bytes | None) -> str:
    """Returns the id in a header of HTTP; "" where there is none that can be echoed."""
    return "" if value is None else _checked(value.decode("latin-1"))


def request_id_of_metadata(metadata: Iterable[Any] | None) -> str:
    """Returns the id in the metadata of a gRPC call; "" where there is none that can be echoed, or several differ."""
    found = {value for key, value in metadata or () if key == REQUEST_ID}
    value = found.pop() if len(found) == 1 else ""
    return _checked(value) if isinstance(value, str) else ""


def _checked(value: str) -> str:
    return value if _ID.fullmatch(value) else ""
