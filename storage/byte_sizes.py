"""Reads and writes numbers of bytes as people write them: 536870912 or 512MiB."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS.update({"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40})
_SIZE = re.compile(r"\s*([0-9]{1,18})\s*([A-Za-z]{0,3})\s*")


def parse_bytes(value: Any) -> int:
    """Returns the bytes in 1048576, "1048576" or "1MiB". Raises ValueError."""
    if type(value) is int:
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError("expected a number of bytes such as 536870912 or 512MiB")
    return int(found[1]) * _UNITS[found[2].lower()]


ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
_NAMES = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(count: float) -> str:
    """Formats bytes, such as 1.5 GiB."""
    for unit in _NAMES[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_NAMES[-1]}"
