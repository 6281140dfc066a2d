"""POST .../infer and v1 :predict: no routing table and no validation layer on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from serving.control.models import (
    Model,
    ModelAnswer,
    Models,
    answer_parameters,
    answer_request,
    refresh_for_outputs,
    with_model,
)
from serving.http.encoding import compress
from serving.http.messages import JSON, HttpRequest, HttpResponse, InferenceRoute
from serving.protocol.json_text import SHORT_JSON_BYTES
from serving.protocol.routing import Routing, routing_of_headers, routing_of_parameters
from serving.protocol.tensors import InferRequest
from serving.protocol.v1 import decode_predict, encode_predict
from serving.protocol.v2 import decode_request, encode_response, read_header
from serving.security.forwarded import forwarded_headers, regions_for
from storage.errors import InvalidInput

_BINARY = (b"content-type", b"application/octet-stream")
_HEADER_LENGTH = b"inference-header-content-length"
_PREDICT = ":predict"
# Outputs of so many bytes are written by a thread.
_LONG_BYTES = 1 << 20


def inference_route(request: HttpRequest) -> InferenceRoute | None:
    """What an inference request asks for; None for every other."""
    if request.method != "POST":
        return None
    parts = request.path.split("/")
    if parts[-1] == "infer" and parts[:3] == ["", "v2", "models"]:
        if len(parts) == 5:
            return InferenceRoute(parts[3], "", False)
        if len(parts) == 7 and parts[4] == "versions":
            return InferenceRoute(parts[3], parts[5], False)
    if len(parts) == 4 and parts[1:3] == ["v1", "models"] and parts[3].endswith(_PREDICT):
        return InferenceRoute(parts[3].removesuffix(_PREDICT), "", True)
    return None


class InferenceRoutes:
    """Answers inference requests."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def admit(self, route: InferenceRoute, request: HttpRequest) -> None:
        """A request for a model that there is not, or has too much to do, is refused before its body is read."""
        routing = routing_of_headers(request.headers)
        model = self._models.known(route.name, route.version, routing.routing_key)
        if model is not None:
            model.check_load()

    async def answer(self, route: InferenceRoute, request: HttpRequest) -> HttpResponse:
        """The response. Raises EmberlineError."""
        routing = routing_of_headers(request.headers)
        if route.is_v1:
            response = await self._predict(route, routing, request.body)
        else:
            response = await self._infer(route, routing, request)
        accepts = request.headers.get(b"accept-encoding")
        if accepts is not None:
            response.content = await compress(response.content, accepts, response.headers)
        return response

    async def _infer(self, route: InferenceRoute, routing: Routing, request: HttpRequest) -> HttpResponse:
        body, header_length = request.body, _header_length(request.headers)
        json_bytes = len(body) if header_length is None else header_length
        if json_bytes > SHORT_JSON_BYTES:
            header = await asyncio.to_thread(read_header, body, header_length)
        else:
            header = read_header(body, header_length)
        routing = routing_of_parameters(header.parameters, routing)
        regions = self._models.regions

        async def ask(model: Model) -> tuple[Model, InferRequest, ModelAnswer]:
            named = regions if regions.is_empty else regions_for(regions, forwarded_headers(request.headers))
            if json_bytes > SHORT_JSON_BYTES:
                decoded = await asyncio.to_thread(decode_request, model.signature, header, named)
            else:
                decoded = decode_request(model.signature, header, named)
            result = await answer_request(
                model, decoded, routing, timeout_us=decoded.timeout_us, follow=not route.version
            )
            return model, decoded, result

        # The key may have come with the body, and models change while a body is read.
        model, decoded, result = await with_model(self._models, route.name, route.version, routing.routing_key, ask)
        await refresh_for_outputs(regions, decoded)
        version, parameters = str(result.snapshot.version), answer_parameters(result)
        encode = partial(encode_response, model.signature, version, decoded, result.outputs, parameters, regions)
        is_long = sum([values.nbytes for values in result.outputs]) > _LONG_BYTES
        content, json_length = await asyncio.to_thread(encode) if is_long else encode()
        if json_length is None:
            return HttpResponse(200, content, [JSON])
        return HttpResponse(200, content, [_BINARY, (_HEADER_LENGTH, str(json_length).encode())])

    async def _predict(self, route: InferenceRoute, routing: Routing, body: bytes) -> HttpResponse:
        async def ask(model: Model) -> tuple[Model, bool, ModelAnswer]:
            if len(body) > SHORT_JSON_BYTES:
                columns, batch, by_rows = await asyncio.to_thread(decode_predict, model.signature, body)
            else:
                columns, batch, by_rows = decode_predict(model.signature, body)
            result = await model.infer(
                columns,
                batch,
                min_snapshot=routing.min_snapshot,
                follow=not route.version,
                routing_key=routing.routing_key,
            )
            return model, by_rows, result

        model, by_rows, result = await with_model(self._models, route.name, route.version, routing.routing_key, ask)
        # v1 has no place in its body for these, so they travel as headers.
        snapshot = result.snapshot
        headers = [
            JSON,
            (b"emberline-snapshot", snapshot.id.encode()),
            (b"emberline-sequence", str(snapshot.sequence).encode()),
            (b"emberline-model-version", str(snapshot.version).encode()),
        ]
        if result.unresolved:
            headers.append((b"emberline-unresolved", str(result.unresolved).encode()))
        return HttpResponse(200, encode_predict(model.signature, result.outputs, by_rows), headers)


def _header_length(headers: Mapping[bytes, bytes]) -> int | None:
    text = headers.get(_HEADER_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise InvalidInput(
            f"Inference-Header-Content-Length must be a number of bytes, got {text[:40].decode('latin-1')!r}",
            field="Inference-Header-Content-Length",
        )
    return int(text)
