"""Numbers of bytes on the command line."""

from __future__ import annotations

from typing import Any

import click

from storage.byte_sizes import parse_bytes


class _Bytes(click.ParamType[int]):
    name = "bytes"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            count = parse_bytes(value)
        except ValueError as error:
            self.fail(f"{error}, got {value!r}", param, ctx)
        if count < self._least:
            self.fail(f"expected {self._least} or more bytes, got {value!r}", param, ctx)
        return count


BYTES = _Bytes()
SOME_BYTES = _Bytes(least=1)
#: Bytes a second, as many as ServerConfig takes at least.
RATE = _Bytes(least=1 << 16)
