"""Sends responses without an end, such as server-sent events, at the pace at which their client reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from serving.http.exchange import Exchange, response_head
from serving.http.messages import HttpResponse
from serving.http.protocol import HttpProtocol

EVENT_STREAM = (b"content-type", b"text/event-stream")


class Parts(Protocol):
    """The content of a response, part by part."""

    async def next(self) -> bytes:
        """Waits for the next part; returns b"" at the end."""

    def close(self) -> None:
        """Ends it: nothing more is sent. May be called more than once."""


@dataclass(slots=True)
class StreamResponse(HttpResponse):
    """A response whose content has no length and is sent in parts; the connection ends with it."""

    parts: Parts | None = None


class StreamingConnection(HttpProtocol):
    """Handles one connection, whose last response may be a stream.

    A part is written when the client has read those before it; one that stops reading is cut off by the limits, as with
    any response.
    """

    def __init__(self, *arguments: Any, **further: Any) -> None:
        super().__init__(*arguments, **further)
        self._writable = asyncio.Event()
        self._writable.set()

    def pause_writing(self) -> None:
        """See HttpProtocol."""
        self._writable.clear()
        super().pause_writing()

    def resume_writing(self) -> None:
        """See HttpProtocol."""
        self._writable.set()
        super().resume_writing()

    def _send(self, exchange: Exchange, response: HttpResponse) -> None:
        parts = response.parts if isinstance(response, StreamResponse) else None
        if parts is None:
            super()._send(exchange, response)
            return
        if self._transport.is_closing() or exchange.is_head:
            parts.close()
            super()._send(exchange, HttpResponse(response.status, b"", response.headers, closes=True))
            return
        self._transport.write(b"".join(response_head(response, exchange, False, has_length=False)))
        self._active = exchange
        task = self._task = self._loop.create_task(self._send_parts(parts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_parts(self, parts: Parts) -> None:
        try:
            while (part := await parts.next()) and not self._transport.is_closing():
                self._transport.write(part)
                await self._writable.wait()
        finally:
            parts.close()
            self._active = self._task = None
            self._close()
