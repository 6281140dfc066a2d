"""Numbers of bytes on the command line and in reports."""

from __future__ import annotations

from typing import Any

import click

from serving.byte_sizes import parse_bytes

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Bytes(click.ParamType[int]):
    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(f"{error}, got {value!r}", param, ctx)


BYTES = _Bytes()


def human_bytes(count: float) -> str:
    """Formats bytes, such as 1.5 GiB."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"
