"""POST .../infer and v1 :predict as plain ASGI: no routing table and no validation layer on the way."""

from __future__ import annotations

import asyncio
from typing import Any

from serving.config import ServerConfig
from serving.engine.repository import ModelRepository
from serving.engine.requests import InferenceResult
from serving.errors import status_of
from serving.http.body import BodyReader, ClientGoneError, Receive, Scope, Send
from serving.protocol.columns import to_columns
from serving.protocol.json_text import dump_json
from serving.protocol.v1 import decode_predict, encode_predict
from serving.protocol.v2 import decode_request, encode_response, read_header
from storage.errors import InvalidInput, Unsupported

_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
_HEADER_LENGTH = b"inference-header-content-length"
# A client that went away is looked for only in requests that take longer than this.
_WATCH_AFTER_S = 0.05


class InferenceRoutes:
    """Answers inference requests. Call `infer` or `predict` with the model's name and version."""

    def __init__(self, config: ServerConfig, repository: ModelRepository) -> None:
        self._repository = repository
        self._bodies = BodyReader(config)

    async def infer(self, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        """KServe v2."""
        await self._answer(self._infer, name, version, scope, receive, send)

    async def predict(self, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        """KServe v1."""
        await self._answer(self._predict, name, version, scope, receive, send)

    async def _answer(self, handle: Any, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        held = 0
        extra: list[tuple[bytes, bytes]] = []
        try:
            model = self._repository.get(name, version)
            headers = dict(scope["headers"])
            if headers.get(b"content-encoding", b"identity") != b"identity":
                extra = [(b"accept-encoding", b"identity")]
                raise Unsupported("compressed requests are not supported; send Content-Encoding: identity")
            body = await self._bodies.read(headers, receive)
            held = len(body)
            status = 200
            content, extra = await handle(model, headers, body, receive)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            status, _, text = status_of(error)
            content, extra = dump_json({"error": text}), [_JSON, *extra]
            if status == 413:
                # The rest of the body will not be read, so the connection cannot be used again.
                extra.append((b"connection", b"close"))
        finally:
            self._bodies.release(held)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*extra, (b"content-length", str(len(content)).encode())],
            }
        )
        await send({"type": "http.response.body", "body": content})

    async def _infer(self, model: Any, headers: dict[bytes, bytes], body: bytes, receive: Receive) -> Any:
        request = decode_request(model.signature, read_header(body, _header_length(headers)))
        columns, batch = to_columns(model.signature, request.tensors)
        result = await _while_connected(model.infer(columns, batch, request.timeout_us), receive)
        parameters: dict[str, Any] = {"snapshot": model.snapshot}
        if result.unresolved:
            parameters["unresolved"] = result.unresolved
        content, json_length = encode_response(model.signature, model.version, request, result.outputs, parameters)
        if json_length is None:
            return content, [_JSON]
        return content, [_BINARY, (_HEADER_LENGTH, str(json_length).encode())]

    async def _predict(self, model: Any, headers: dict[bytes, bytes], body: bytes, receive: Receive) -> Any:
        columns, batch, by_rows = decode_predict(model.signature, body)
        result = await _while_connected(model.infer(columns, batch), receive)
        # v1 has no place in its body for these, so they travel as headers.
        headers_out = [_JSON, (b"emberline-snapshot", model.snapshot.encode())]
        if result.unresolved:
            headers_out.append((b"emberline-unresolved", str(result.unresolved).encode()))
        return encode_predict(model.signature, result.outputs, by_rows), headers_out


def _header_length(headers: dict[bytes, bytes]) -> int | None:
    text = headers.get(_HEADER_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise InvalidInput(
            f"Inference-Header-Content-Length must be a number of bytes, got {text[:40].decode('latin-1')!r}",
            field="Inference-Header-Content-Length",
        )
    return int(text)


async def _while_connected(work: Any, receive: Receive) -> InferenceResult:
    """Awaits the model's answer; when the client goes away meanwhile, cancels it and raises ClientGoneError."""
    task = asyncio.current_task()
    assert task is not None
    watcher: asyncio.Task[None] | None = None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = asyncio.ensure_future(watch())

    timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, start)
    try:
        result: InferenceResult = await work
        return result
    except asyncio.CancelledError:
        if gone:
            task.uncancel()
            raise ClientGoneError from None
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
