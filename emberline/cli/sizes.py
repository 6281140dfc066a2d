"""Numbers of bytes on the command line."""

from __future__ import annotations

from typing import Any

import click

from serving.byte_sizes import parse_bytes


class _Bytes(click.ParamType[int]):
    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(f"{error}, got {value!r}", param, ctx)


BYTES = _Bytes()
