"""Reading a request's body within bounds: of one request, of all together, and of time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.config import ServerConfig
from serving.errors import BodyTooLarge
from serving.http.slow_requests import SlowRequests
from storage.errors import InvalidInput, Overloaded

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


class BodyReader:
    """Reads bodies and keeps account of what is being read and held. One a front end, on one event loop."""

    def __init__(self, config: ServerConfig, slow: SlowRequests) -> None:
        self._limit = config.max_body_bytes
        self._total = config.max_inflight_bytes
        self._timeout_s = config.body_timeout_s
        self._held = 0
        self.slow = slow

    def release(self, size: int) -> None:
        """Gives back what `read` took into account: the length of the body that it returned."""
        self._held -= size

    async def read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body; give its length back with `release` when the request is over.

        Raises BodyTooLarge as soon as it is known, Overloaded when all requests together hold too much, InvalidInput
        when it does not arrive in time, ClientGoneError.
        """
        declared = headers.get(b"content-length")
        if declared is not None and (not declared.isdigit() or len(declared) > 18 or int(declared) > self._limit):
            raise self._too_large(declared.decode("latin-1")[:40])
        chunks: list[bytes] = []
        size = 0
        late = False
        task = asyncio.current_task()
        assert task is not None

        def give_up() -> None:
            nonlocal late
            late = True
            task.cancel()

        key = self.slow.watch(self._timeout_s, give_up)
        try:
            while True:
                message = await receive()
                chunk = self._chunk(message, size)
                chunks.append(chunk)
                size += len(chunk)
                if not message.get("more_body", False):
                    return chunk if len(chunks) == 1 else b"".join(chunks)
        except BaseException as error:
            self._held -= size
            if late and isinstance(error, asyncio.CancelledError) and task.uncancel() == 0:
                raise InvalidInput(f"the body did not arrive within {self._timeout_s:g} s", field="body") from None
            raise
        finally:
            self.slow.forget(key)

    def _chunk(self, message: Message, size: int) -> bytes:
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk: bytes = message.get("body", b"")
        if size + len(chunk) > self._limit:
            raise self._too_large(f"over {self._limit}")
        if self._held + len(chunk) > self._total:
            raise Overloaded(f"requests of {self._total} bytes are being read already; try later")
        self._held += len(chunk)
        return chunk

    def _too_large(self, got: str) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body has {got} bytes, at most {self._limit} are taken; send smaller batches, or start the server "
            "with a larger max_body_bytes",
            field="body",
        )
