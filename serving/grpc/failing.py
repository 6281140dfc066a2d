"""Ends a call with another status than OK."""

from __future__ import annotations

from typing import Any

import grpc


def fail(context: Any, code: grpc.StatusCode, text: str) -> None:
    """Sets the status of a call; its handler returns after that.

    `context.abort` raises instead, and its exception, the call and all frames between them then refer to each other:
    forty objects for each call, which stay until a garbage collection finds them.
    """
    context.set_code(code)
    context.set_details(text)
