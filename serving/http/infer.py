"""POST .../infer and v1 :predict as plain ASGI: no routing table and no validation layer on the way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from serving.errors import status_of
from serving.http.body import BodyReader, ClientGoneError, Receive, Scope, Send
from serving.models import Model, ModelAnswer, Models, with_model
from serving.protocol.columns import to_columns
from serving.protocol.json_text import dump_json
from serving.protocol.routing import Routing, routing_of_headers, routing_of_parameters
from serving.protocol.tensors import InferRequest
from serving.protocol.v1 import decode_predict, encode_predict
from serving.protocol.v2 import decode_request, encode_response, read_header
from storage.errors import InvalidInput, Unsupported

_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
_HEADER_LENGTH = b"inference-header-content-length"
# A client that went away is looked for only in requests that take longer than this.
_WATCH_AFTER_S = 0.05
_Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class _Call:
    """One request as it arrived. routing: of its headers."""

    name: str
    version: str
    routing: Routing
    headers: dict[bytes, bytes]
    body: bytes
    receive: Receive


class InferenceRoutes:
    """Answers inference requests. Call `infer` or `predict` with the model's name and version."""

    def __init__(self, models: Models, bodies: BodyReader) -> None:
        self._models = models
        self._slow = bodies.slow
        self._bodies = bodies

    async def infer(self, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        """KServe v2."""
        await self._answer(self._infer, name, version, scope, receive, send)

    async def predict(self, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        """KServe v1."""
        await self._answer(self._predict, name, version, scope, receive, send)

    async def _answer(self, handle: Any, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        held = 0
        extra: _Headers = []
        try:
            headers = dict(scope["headers"])
            routing = routing_of_headers(headers)
            # A request for a model that there is not, or has too much to do, is refused before its body is read.
            (await self._models.find(name, version, routing.routing_key)).check_load()
            if headers.get(b"content-encoding", b"identity") != b"identity":
                extra = [(b"accept-encoding", b"identity")]
                raise Unsupported("compressed requests are not supported; send Content-Encoding: identity")
            body = await self._bodies.read(headers, receive)
            held = len(body)
            status = 200
            content, extra = await handle(_Call(name, version, routing, headers, body, receive))
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

    async def _infer(self, call: _Call) -> tuple[bytes, _Headers]:
        header = read_header(call.body, _header_length(call.headers))
        routing = routing_of_parameters(header.parameters, call.routing)

        async def ask(model: Model) -> tuple[Model, InferRequest, ModelAnswer]:
            request = decode_request(model.signature, header)
            columns, batch = to_columns(model.signature, request.tensors)
            work = model.infer(
                columns,
                batch,
                request.timeout_us,
                min_snapshot=routing.min_snapshot,
                follow=not call.version,
                priority=request.priority,
                routing_key=routing.routing_key,
            )
            return model, request, await self._while_connected(work, call.receive)

        # The key may have come with the body, and models change while a body is read.
        model, request, result = await with_model(self._models, call.name, call.version, routing.routing_key, ask)
        snapshot = result.snapshot
        parameters: dict[str, Any] = {"snapshot": snapshot.id, "sequence": snapshot.sequence}
        if result.unresolved:
            parameters["unresolved"] = result.unresolved
        content, json_length = encode_response(
            model.signature, str(snapshot.version), request, result.outputs, parameters
        )
        if json_length is None:
            return content, [_JSON]
        return content, [_BINARY, (_HEADER_LENGTH, str(json_length).encode())]

    async def _predict(self, call: _Call) -> tuple[bytes, _Headers]:
        async def ask(model: Model) -> tuple[Model, bool, ModelAnswer]:
            columns, batch, by_rows = decode_predict(model.signature, call.body)
            work = model.infer(
                columns,
                batch,
                min_snapshot=call.routing.min_snapshot,
                follow=not call.version,
                routing_key=call.routing.routing_key,
            )
            return model, by_rows, await self._while_connected(work, call.receive)

        key = call.routing.routing_key
        model, by_rows, result = await with_model(self._models, call.name, call.version, key, ask)
        # v1 has no place in its body for these, so they travel as headers.
        snapshot = result.snapshot
        headers = [
            _JSON,
            (b"emberline-snapshot", snapshot.id.encode()),
            (b"emberline-sequence", str(snapshot.sequence).encode()),
            (b"emberline-model-version", str(snapshot.version).encode()),
        ]
        if result.unresolved:
            headers.append((b"emberline-unresolved", str(result.unresolved).encode()))
        return encode_predict(model.signature, result.outputs, by_rows), headers

    async def _while_connected(self, work: Any, receive: Receive) -> ModelAnswer:
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

        key = self._slow.watch(_WATCH_AFTER_S, start)
        try:
            result: ModelAnswer = await work
            return result
        except asyncio.CancelledError:
            if gone:
                task.uncancel()
                raise ClientGoneError from None
            raise
        finally:
            self._slow.forget(key)
            if watcher is not None:
                watcher.cancel()


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
